import numpy as np
import pytest

from safekeeper.base.errors import ConfigurationError
from walproxy.pipeline.decoder.opcodes import (
    MAJORS,
    operation_code,
    operation_name,
    operation_table,
    rmgr_name,
    rmgr_table,
)


def test_resource_managers_are_called_as_pg_waldump_calls_them() -> None:
    assert [rmgr_name(rmid) for rmid in (0, 1, 9, 10, 11, 16, 21)] == [
        "XLOG",
        "Transaction",
        "Heap2",
        "Heap",
        "Btree",
        "SPGist",
        "LogicalMessage",
    ]
    assert rmgr_name(128) == "custom128"
    assert rmgr_name(255) == "custom255"
    assert len(rmgr_table()) == 256


@pytest.mark.parametrize(
    ("rmid", "info", "names"),
    [
        (10, 0x00, ("INSERT",) * 6),
        (10, 0x80, ("INSERT+INIT",) * 6),
        (10, 0x40, ("HOT_UPDATE",) * 6),
        (10, 0xC0, ("HOT_UPDATE+INIT",) * 6),
        (10, 0x90, ("0x90",) * 6),
        (1, 0x80, ("COMMIT",) * 6),
        (1, 0xB0, ("COMMIT_PREPARED",) * 6),
        (1, 0x60, ("0x60", *("INVALIDATION",) * 5)),
        (1, 0xF0, ("0x70",) * 6),
        (9, 0x10, ("CLEAN", "PRUNE", "PRUNE", "PRUNE", "PRUNE_ON_ACCESS", "PRUNE_ON_ACCESS")),
        (9, 0x20, ("FREEZE_PAGE", "VACUUM", "VACUUM", "VACUUM", "PRUNE_VACUUM_SCAN", "PRUNE_VACUUM_SCAN")),
        (9, 0xD0, ("MULTI_INSERT+INIT",) * 6),
        (4, 0x00, ("CREATE", "CREATE", *("CREATE_FILE_COPY",) * 4)),
        (4, 0x20, ("0x20", "0x20", *("DROP",) * 4)),
        (18, 0x20, ("SETTS", *("0x20",) * 5)),
        (0, 0xE0, ("0xe0", "0xe0", "0xe0", "0xe0", "CHECKPOINT_REDO", "CHECKPOINT_REDO")),
        (20, 0xF0, ("Generic",) * 6),
        (200, 0x00, ("0x0",) * 6),
    ],
)
def test_an_operation_has_the_name_of_its_version(rmid: int, info: int, names: tuple[str, ...]) -> None:
    assert tuple(operation_name(major, rmid, info) for major in MAJORS) == names


def test_the_flags_of_the_record_itself_do_not_change_its_name() -> None:
    assert operation_name(17, 10, 0x4F) == "HOT_UPDATE"


def test_arrays_of_records_are_named_at_once() -> None:
    rmid = np.array([10, 1, 255], np.uint8)
    info = np.array([0x80, 0x10, 0xF0], np.uint8)
    codes = operation_code(rmid.astype(np.int32), info)
    assert operation_table(15).take(codes).to_pylist() == ["INSERT+INIT", "PREPARE", "0xf0"]


def test_an_unknown_version_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="PostgreSQL 12"):
        operation_table(12)
