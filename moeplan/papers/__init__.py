"""The formulas of DisagMoE (arXiv 2605.11005) and Piper (arXiv 2605.05049) as functions of numbers, nothing else.

What ends in `_paper` is the paper's formula, letter for letter, also where it is off; where they differ, the exact one
stands beside it as `_exact`. Planning uses neither: each docstring names the function that does. Every docstring ends
with its source and one of three words:

* printed: given as the paper's own formula or table by a public review of it (DisagMoE: by two or more; Piper: by one,
  which is all there is);
* reported: given in a reviewer's words, or (DisagMoE) as the paper's own by one review only;
* inferred: our own derivation; the paper's formula is unknown, or there is none.

Only the abstracts were read first hand. Nothing is checked here except where SpecError is named; a division by zero is
a ZeroDivisionError.
"""
