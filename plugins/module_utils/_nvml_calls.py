# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""Calls into NVML for the child: each announced to the parent before it is made, each error a ``Miss``."""

from __future__ import annotations

import ctypes
import json
import os
from typing import Any, Callable, Mapping

from ansible_collections.aiinfra.gpu_node.plugins.module_utils._nvml_tables import (
    ALL_ONES,
    CODES,
    FLAGS,
    RANGES,
    TEXTS,
    WHY,
)


class Miss(Exception):
    """A value that is not there."""

    def __init__(self, why: str, code: int | None = None, note: str = "") -> None:
        super().__init__(note)
        self.why, self.code, self.note = why, code, note


def miss(code: int, where: str) -> Miss:
    """Return what a code of NVML means for the value that was asked for; only 3, 4 and 13 are no failure."""
    return Miss(WHY.get(code, "failed"), code, "{}: {}".format(where, CODES.get(code, f"code {code}")))


def checked(name: str, value: Any) -> Any:
    """Return a value as plain data.

    Raises:
        Miss: when it cannot be.
    """
    if name in TEXTS:
        text = value.decode("utf-8") if isinstance(value, bytes) else str(value)
        return text.split("\0")[0].strip()
    number = int(getattr(value, "value", value))
    low, high = RANGES.get(name, (0, max(ALL_ONES)))
    if not low <= number <= high or (number in ALL_ONES and name not in RANGES):
        raise Miss("failed", None, f"{number} cannot be: {name} is between {low} and {high}")
    return bool(number) if name in FLAGS else number


class Noted:
    """A value with something that has to be known about it."""

    def __init__(self, value: Any, note: str, code: int | None = None) -> None:
        self.value, self.note, self.code = value, note, code


class Out:
    """The pipe to the parent."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lines: list[str] = []

    def add(self, line: Mapping[str, Any]) -> None:
        """Keep a line for the next write."""
        self._lines.append(json.dumps(line))

    def before(self, call: str, gpu: int | None) -> None:
        """Tell the parent which call comes now, with all that was kept."""
        self.add({"call": call, "gpu": gpu})
        self.flush()

    def flush(self) -> None:
        """Write what was kept."""
        data = "".join(line + "\n" for line in self._lines).encode("ascii")
        self._lines = []
        while data:
            data = data[os.write(self._descriptor, data) :]


class Nvml:
    """Calls of the binding, each announced and each error turned into a ``Miss``."""

    def __init__(self, binding: Any, out: Out) -> None:
        self.binding, self.out = binding, out
        self.gpu: int | None = None
        # Not a subclass of NVMLError, and missing in old bindings.
        self._mismatch = getattr(binding, "NVMLLibraryMismatchError", binding.NVMLError)

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a function of the binding.

        Raises:
            Miss: for every way in which it can fail.
        """
        function = getattr(self.binding, name, None)
        if function is None:
            raise Miss("no_symbol", 13, f"the binding has no {name}")
        self.out.before(name, self.gpu)
        try:
            return function(*arguments)
        except self.binding.NVMLError as error:
            raise miss(int(error.value), name) from None
        except self._mismatch:
            raise miss(13, name) from None
        except UnicodeDecodeError as error:
            raise Miss("failed", None, f"{name}: text that is not UTF-8: {error.object!r}") from None
        except Exception as error:  # an older binding, or one that is not NVIDIA's
            raise Miss("failed", None, f"{name}: {type(error).__name__}: {error}") from None

    def first(self, *asks: Callable[[], Any]) -> Any:
        """Return the answer of the first call that this library has, in the version that is asked for."""
        for ask in asks[:-1]:
            try:
                return ask()
            except Miss as error:
                if error.code not in (13, 25):
                    raise
        return asks[-1]()

    def struct(self, name: str, type_name: str, handle: Any) -> Any:
        """Fill a structure of the binding, which sets its version word, and return it."""
        made = getattr(self.binding, type_name, None)
        if made is None:
            raise Miss("no_symbol", 13, f"the binding has no {type_name}")
        filled = made()
        self.call(name, handle, ctypes.byref(filled))
        return filled
