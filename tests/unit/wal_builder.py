"""Writes WAL as PostgreSQL lays it out, for the tests of what reads it. Knows nothing of the decoder.

Records are written one after the other into one growing `bytes`; page headers are put in wherever a page begins.
"""

from dataclasses import dataclass, field

import google_crc32c

from safekeeper.waldecode.format import LONG_PAGE_HEADER_TAIL, MAGIC_OF_MAJOR, PAGE_HEADER, PAGE_SIZE, RECORD_HEADER

MIB = 1 << 20


@dataclass
class WrittenRecord:
    """What was written: the fields that a reader must find again."""

    start_lsn: int
    end_lsn: int
    previous_lsn: int
    total_length: int
    xid: int
    rmid: int
    info: int
    body: bytes


@dataclass
class WalBuilder:
    """WAL from `begin_lsn`, a page's start, on. `data` holds it, up to the last byte of the last record."""

    begin_lsn: int = MIB
    segment_size: int = MIB
    major: int = 18
    tli: int = 1
    system_id: int = 7_000_000_000_000_000_001
    previous_lsn: int = 0
    data: bytearray = field(default_factory=bytearray)
    records: list[WrittenRecord] = field(default_factory=list)

    @property
    def position(self) -> int:
        return self.begin_lsn + len(self.data)

    def read(self, begin_lsn: int, end_lsn: int) -> bytes:
        """Return the bytes [begin_lsn, end_lsn), which must be there."""
        assert self.begin_lsn <= begin_lsn <= end_lsn <= self.position, "a read outside of the log"
        return bytes(self.data[begin_lsn - self.begin_lsn : end_lsn - self.begin_lsn])

    def page_header(self, flags: int = 0, rest_of_record: int = 0) -> bytes:
        """Return the header of the page that begins at the present position."""
        is_long = self.position % self.segment_size == 0
        header = PAGE_HEADER.pack(
            MAGIC_OF_MAJOR[self.major], flags | 2 * is_long, self.tli, self.position, rest_of_record
        )
        if is_long:
            header += LONG_PAGE_HEADER_TAIL.pack(self.system_id, self.segment_size, PAGE_SIZE)
        return header

    def add(
        self,
        body: bytes,
        rmid: int = 10,
        info: int = 0,
        xid: int = 0,
        previous_lsn: int | None = None,
        held: int | None = None,
    ) -> WrittenRecord:
        """Append a record. Of one that is cut off by a crash only the first `held` bytes are written."""
        self.data += bytes(-len(self.data) % 8)
        if self.position % PAGE_SIZE == 0:
            self.data += self.page_header()
        start_lsn = self.position
        previous_lsn = self.previous_lsn if previous_lsn is None else previous_lsn
        header = RECORD_HEADER.pack(24 + len(body), xid, previous_lsn, info, rmid, 0)[:20]
        crc = google_crc32c.extend(google_crc32c.value(body), header)
        content = header + crc.to_bytes(4, "little") + body
        left = content[:held]
        while left:
            if self.position % PAGE_SIZE == 0:
                written = len(content[:held]) - len(left)
                self.data += self.page_header(flags=1, rest_of_record=len(content) - written)
            room = PAGE_SIZE - self.position % PAGE_SIZE
            self.data += left[:room]
            left = left[room:]
        end_lsn = self.position + -self.position % 8
        record = WrittenRecord(start_lsn, end_lsn, previous_lsn, len(content), xid, rmid, info, body)
        if held is None:
            self.previous_lsn = start_lsn
            self.records.append(record)
        return record

    def fill_page(self, leave: int = 0) -> WrittenRecord:
        """Append a record that ends `leave` bytes (a multiple of 8) before the end of its page."""
        self.data += bytes(-len(self.data) % 8)
        if self.position % PAGE_SIZE == 0:
            self.data += self.page_header()
        return self.add(b"f" * (PAGE_SIZE - self.position % PAGE_SIZE - 24 - leave))

    def switch(self) -> WrittenRecord:
        """Append a switch record and the zeros behind it, to the end of the segment."""
        record = self.add(b"", rmid=0, info=0x40)
        self.data += bytes(-self.position % self.segment_size)
        record.end_lsn = self.position
        return record

    def overwrite(self) -> WrittenRecord:
        """Begin the next page as after a crash that lost the record under way."""
        self.data += bytes(-len(self.data) % PAGE_SIZE)
        self.data += self.page_header(flags=8)
        return self.add(bytes(16), rmid=0, info=0xD0)


def wal_with_commits(begin_lsn: int, segment_size: int, length: int) -> bytes:
    """Return so many bytes of WAL in which every segment has some commits."""
    wal = WalBuilder(begin_lsn=begin_lsn, segment_size=segment_size)
    while len(wal.data) < length:
        wal.add(b"x" * 50_000)
        wal.add(b"time", rmid=1)
    return bytes(wal.data[:length])
