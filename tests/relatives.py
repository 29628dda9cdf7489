"""DeepSeek-OCR and its relatives, whose references and vendors' code are tested alike."""

from dsocr_analyze.architectures import ARCHITECTURES, RELATIVES

FAMILY = {name: ARCHITECTURES[name] for name in RELATIVES}
