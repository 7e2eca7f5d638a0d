"""Mutation testing: how many small semantic errors the tests find, and which ones they do not find.

Theory of operation. `edits` derives mutations from the syntax tree of the functions of `targets.MODULES`: one
comparison, condition, number, name, statement or order is different in each. A trial (`trials`) is a forked child of a
process that has imported everything: `install` compiles the mutated module and gives the function the new code object,
so all modules that have imported the function run it, and no file is written. The child runs three suites
(`suites`), each with a limit of CPU time, until a test fails: seeds of the simulator, unit tests, scenarios. Only tests
that execute the mutated statement without the mutation are run: `reach` measures which ones do, once for a state of
the source.

A mutation that no test detects has survived. The result is a score (`scores`): of a sample, the share that the
simulator detects, and the share that all tests detect together.

Mutations have names that do not change with edits of other functions: module, function, kind, number, and a digest of
the function. The results of an interrupted run are reused if the source and the tests are the same.
"""
