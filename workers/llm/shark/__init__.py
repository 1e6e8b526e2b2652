"""Models and programs of sharktank."""
