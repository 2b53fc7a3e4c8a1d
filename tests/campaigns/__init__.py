"""Many cases of one kind: a few of them in `make test`, all of them with --long."""
