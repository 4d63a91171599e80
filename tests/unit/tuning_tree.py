"""A directory that stands for / in the tests of host tuning."""

from __future__ import annotations

from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _sysctl

OWN = "/etc/sysctl.d/90-gpu-node.conf"


class Tree:
    """Writes files below a temporary root and reads them back."""

    def __init__(self, root):
        self.root = str(root)
        self.path = root

    def write(self, path, text):
        """Write a file (text or bytes) and return self, so that calls chain."""
        file = self.path / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text.encode() if isinstance(text, str) else text)
        return self

    def live(self, **values):
        """Write live kernel settings; double underscores stand for dots."""
        for name, value in values.items():
            self.sysctl(name.replace("__", "."), value)
        return self

    def sysctl(self, name, value):
        """Write one live kernel setting."""
        return self.write("/proc/sys/" + _sysctl.to_path(name), f"{value}\n")

    def link(self, path, target):
        """Make a symbolic link."""
        file = self.path / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.symlink_to(target)
        return self

    def read(self, path):
        """Return the text of a file."""
        return (self.path / path.lstrip("/")).read_text()

    def exists(self, path):
        """Whether a file or link exists."""
        file = self.path / path.lstrip("/")
        return file.exists() or file.is_symlink()

    def value(self, name):
        """Return a live kernel setting."""
        return self.read("/proc/sys/" + _sysctl.to_path(name)).strip()


class ReadOnly(_sysctl.Live):
    """A kernel whose settings cannot be written, all of them or those named."""

    def __init__(self, root, names=None):
        super().__init__(root)
        self.names = names

    def obstacle(self, path):
        found = super().obstacle(path)
        if found is None and (self.names is None or _sysctl.to_name(path) in self.names):
            return _sysctl.READ_ONLY
        return found

    def write(self, path, value):
        raise AssertionError(f"{path} must not be written")


class Strict(_sysctl.Live):
    """A kernel that calls every value of one key wrong."""

    def __init__(self, root, name):
        super().__init__(root)
        self.name = name

    def write(self, path, value):
        if _sysctl.to_name(path) == self.name:
            raise ValueError("the kernel refuses it: Invalid argument")
        return super().write(path, value)
