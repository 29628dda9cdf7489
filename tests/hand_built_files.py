"""PDFs and TIFFs written byte by byte: no library's writer stands between test and reader."""

import struct

__all__ = ["pdf", "tiff"]

LONG = 4


def pdf(objects, root=1):
    """A PDF of these objects, numbered from 1, with a right table of where they are."""
    out, places = bytearray(b"%PDF-1.7\n"), []
    for number, text in enumerate(objects, 1):
        places.append(len(out))
        out += f"{number} 0 obj\n{text}\nendobj\n".encode()
    table = "".join(f"{place:010} 00000 n \n" for place in places)
    trailer = f"<< /Size {len(objects) + 1} /Root {root} 0 R >>"
    return (
        bytes(out)
        + (
            f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{table}"
            f"trailer\n{trailer}\nstartxref\n{len(out)}\n%%EOF\n"
        ).encode()
    )


def tiff(frames, order="<", *, big=False, after_last=0):
    """A TIFF of frames without pixels, each the values of its tags; `after_last` ends the chain.

    Of each frame the directory is written, in the order of the frames.
    """
    count, entry, offset = ("Q", "HHQ", "Q") if big else ("H", "HHL", "L")
    head = {"<": b"II", ">": b"MM"}[order]
    head += struct.pack(f"{order}HHHQ", 43, 8, 0, 16) if big else struct.pack(f"{order}HL", 42, 8)
    out = bytearray(head)
    for number, tags in enumerate(frames):
        tags = {258: 8, 259: 1, 262: 1, 273: 0, **tags}  # 8 bits, not compressed, 0 is black
        out += struct.pack(order + count, len(tags))
        for tag, value in sorted(tags.items()):
            field = struct.pack(f"{order}L", value).ljust(struct.calcsize(order + offset), b"\0")
            out += struct.pack(order + entry, tag, LONG, 1) + field
        here = len(out) + struct.calcsize(order + offset)
        out += struct.pack(order + offset, after_last if number == len(frames) - 1 else here)
    return bytes(out)
