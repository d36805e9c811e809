"""The command line. Each subcommand is a module with `add(commands)`, listed in `headgate.cli.__main__`."""
