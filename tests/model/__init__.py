"""The life of a submission (docs/interface.md, 9.1) as a model of which every order of steps is explored."""
