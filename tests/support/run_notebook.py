#!/usr/bin/python3
"""run_notebook.py NOTEBOOK ASSIGNMENTS: executes a notebook headless in the current folder, with the
Python lines ASSIGNMENTS at the end of its cell tagged "parameters", and prints what its cells print.
Ends with 1 and the message when a cell fails. Needs Debian's python3-nbclient and python3-ipykernel."""
import sys

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

SECONDS_A_CELL = 300

notebook = nbformat.read(sys.argv[1], as_version=4)
parameters = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])]
if len(parameters) != 1:
    sys.exit(f"error: {sys.argv[1]}: got {len(parameters)} cells tagged parameters, expected 1")
parameters[0].source += "\n" + sys.argv[2]
try:
    NotebookClient(notebook, timeout=SECONDS_A_CELL, kernel_name="python3").execute()
except CellExecutionError as error:
    sys.exit(f"error: {sys.argv[1]}: {error}")
finally:
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            print(output.get("text", ""), end="")
