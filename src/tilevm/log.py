"""What `tilevm.config.debug` asks for: lines through `logging`, under the name "tilevm"."""

from __future__ import annotations

from tilevm.config import config


def tell(level: int, text: str, *arguments: object) -> None:
    """Log `text % arguments`, if `config.debug` is at least `level`."""
    if config.debug < level:
        return
    import logging  # only who asks for lines pays for it

    logger = logging.getLogger("tilevm")
    if not logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("tilevm: %(message)s"))
        logger.addHandler(handler)
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.DEBUG)
    logger.log(logging.INFO if level == 1 else logging.DEBUG, text, *arguments)
