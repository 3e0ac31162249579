"""Train the zoo again: ``python -m training FOLDER``. Not part of the installed package."""
