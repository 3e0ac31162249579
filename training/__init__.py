"""Train the zoo again: ``python -m training train FOLDER``. Not part of the installed package."""
