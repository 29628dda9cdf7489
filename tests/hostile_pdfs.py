"""PDFs that take far more time or memory to read than their few bytes suggest."""

from __future__ import annotations

import zlib

__all__ = ["HOSTILE_PDFS"]

PAGE = b"<</Type/Page/MediaBox[0 0 72 72]>>"


def _stream(values: str, content: bytes) -> bytes:
    return b"<<%s/Length %d>>stream\n%s\nendstream" % (values.encode(), len(content), content)


def _pdf(objects: dict[int, bytes], inside: dict[int, tuple[int, int]], trailer: str = "") -> bytes:
    """A file with a cross-reference stream; `inside` gives stream and index of further objects."""
    body, places = b"%PDF-1.7\n", {}
    for number, content in objects.items():
        places[number] = len(body)
        body += b"%d 0 obj\n%s\nendobj\n" % (number, content)
    own = max(objects | inside) + 1
    places[own] = len(body)
    rows = bytearray()
    for number in range(own + 1):
        kind, one, other = 0, 0, 0
        if number in places:
            kind, one = 1, places[number]
        elif number in inside:
            kind, (one, other) = 2, inside[number]
        rows += bytes([kind]) + one.to_bytes(4) + other.to_bytes(4)
    values = f"/Type/XRef/Size {own + 1}/W[1 4 4]/Root 1 0 R/Filter/FlateDecode{trailer}"
    table = _stream(values, zlib.compress(bytes(rows)))
    return body + b"%d 0 obj\n%s\nendobj\nstartxref\n%d\n%%%%EOF" % (own, table, places[own])


def _tree(pages: int) -> dict[int, bytes]:
    kids = b" ".join(b"%d 0 R" % number for number in range(10, 10 + pages))
    return {1: b"<</Type/Catalog/Pages 2 0 R>>", 2: b"<</Type/Pages/Kids[%s]>>" % kids}


def _object_streams(count: int, expanded: int, filling: bytes) -> bytes:
    """Pages in one object stream each, every one with far more in it."""
    objects, inside = _tree(count), {}
    many = expanded // len(filling)
    for each in range(count):
        page = 10 + each
        first = b"%d 0 " % page
        content = first + PAGE[:-2] + b"/X[" + filling * many + b"]>>"
        values = f"/Type/ObjStm/N 1/First {len(first)}/Filter/FlateDecode"
        objects[10 + count + each] = _stream(values, zlib.compress(content, 9))
        inside[page] = 10 + count + each, 0
    return _pdf(objects, inside)


def _many_in_one_stream(pages: int, objects_each: int) -> bytes:
    """Pages in an object stream each, with many other objects in it."""
    objects, inside = _tree(pages), {}
    for each in range(pages):
        offsets = range(len(PAGE) + 1, len(PAGE) + 1 + 8 * objects_each, 8)
        header = b"%d 0 " % (10 + each) + b"".join(b"99 %d " % offset for offset in offsets)
        values = f"/Type/ObjStm/N {objects_each + 1}/First {len(header)}/Filter/FlateDecode"
        content = zlib.compress(header + PAGE + b" " + b"<</A 1>>" * objects_each, 9)
        objects[10 + pages + each] = _stream(values, content)
        inside[10 + each] = 10 + pages + each, 0
    return _pdf(objects, inside)


def _page_of(values: str, content: bytes) -> bytes:
    """A page whose box is in an object stream encoded like this."""
    return _pdf(_tree(1) | {11: _stream(f"/Type/ObjStm/N 1/First 5{values}", content)},
                {10: (11, 0)})  # fmt: skip


def _many_filters() -> bytes:
    content = b"10 0 " + PAGE + b" " * 30_000_000
    for _ in range(12):
        content = zlib.compress(content, 0 if len(content) < 2**20 else 9)
    return _page_of("/Filter[" + "/FlateDecode" * 12 + "]", content)


def _giant_predictor() -> bytes:
    columns = 240_000
    rows = zlib.compress((b"\4" + bytes(columns)) * 130, 9)
    return _page_of(f"/Filter/FlateDecode/DecodeParms<</Predictor 15/Columns {columns}>>", rows)


def _run_lengths() -> bytes:
    return _page_of("/Filter[/FlateDecode/RunLengthDecode]", zlib.compress(b"\x81 " * 1_000_000, 9))


def _huge_table() -> bytes:
    """A cross-reference stream of millions of objects."""
    rows = zlib.compress(bytes(9) * 3_500_000, 9)
    table = _stream("/Type/XRef/Size 3500000/W[1 4 4]/Root 1 0 R/Filter/FlateDecode", rows)
    return b"%PDF-1.7\n1 0 obj\n" + table + b"\nendobj\nstartxref\n9\n%%EOF"


def _nested(opening: bytes, closing: bytes) -> bytes:
    deep = opening * 200_000 + closing * 200_000
    return _pdf(_tree(1) | {10: b"<</MediaBox " + deep + b">>"}, {})


def _loops() -> bytes:
    group = b"<</Type/Pages/Kids[" + b"2 0 R 3 0 R " * 2000 + b"]>>"
    return _pdf({1: b"<</Type/Catalog/Pages 2 0 R>>", 2: group, 3: group}, {})


def _broad_tree() -> bytes:
    """Groups within groups, a thousand each, without a page."""
    groups = {
        number: b"<</Kids[" + b"%d 0 R " % (number + 1) * 1000 + b"]>>" for number in range(2, 60)
    }
    return _pdf({1: b"<</Type/Catalog/Pages 2 0 R>>", **groups, 60: b"<</Kids[]>>"}, {})


def _encrypted() -> bytes:
    """Encryption whose key takes rounds of hashing, and a key for each of many objects."""
    secret = "00" * 48
    values = (
        f"/Encrypt<</Filter/Standard/V 5/R 6/Length 256/P -4/U<{secret}>/O<{secret}>"
        f"/UE<{secret[:64]}>/OE<{secret[:64]}>/Perms<{secret[:32]}>>>/ID[<00><00>]"
    )
    return _pdf(_tree(1) | {10: PAGE}, {}, values)


def _earlier_tables(count: int) -> bytes:
    """A chain of cross-reference tables that each name an earlier one, and the last the first."""
    body, places = b"%PDF-1.4\n", []
    row = b"0000000000 65535 f \n"
    for each in range(count):
        places.append(len(body))
        before = places[-2] if each else 10**7
        body += b"xref\n0 200\n" + row * 200
        body += b"trailer\n<</Size 200/Root 1 0 R/Prev %d>>\n" % before
    return body + b"startxref\n%d\n%%%%EOF" % places[-1]


HOSTILE_PDFS = {
    "object streams of numbers": lambda: _object_streams(10, 20_000_000, b"1 "),
    "object streams of dictionaries": lambda: _object_streams(10, 20_000_000, b"<</A[1 2]>>"),
    "object streams of spaces": lambda: _object_streams(100, 30_000_000, b" "),
    "object streams of objects": lambda: _many_in_one_stream(10, 300_000),
    "many filters": _many_filters,
    "giant predictor": _giant_predictor,
    "run lengths": _run_lengths,
    "huge cross-reference stream": _huge_table,
    "deep arrays": lambda: _nested(b"[", b"]"),
    "deep dictionaries": lambda: _nested(b"<</A", b">>"),
    "loops": _loops,
    "broad tree": _broad_tree,
    "encrypted": _encrypted,
    "earlier tables": lambda: _earlier_tables(1500),
}
