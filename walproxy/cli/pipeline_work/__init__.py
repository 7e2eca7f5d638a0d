"""What the commands of `walproxy pipeline` do: these modules import the libraries of the extra.

Their options are declared in walproxy/cli/pipeline_commands, which imports none of these: `--help` needs no library.
"""
