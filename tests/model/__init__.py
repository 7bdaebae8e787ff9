"""A model of the life of a submission (docs/interface.md, 9.1), explored in every order of steps."""
