"""The commands of `walproxy pipeline`: one module each, imported when the command is used."""
