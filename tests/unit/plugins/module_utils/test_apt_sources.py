"""apt's sources in both forms, and the text of what the distribution's own source lacks."""

from __future__ import annotations

from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _apt_sources as sources

FRESH = """# A fresh node: main only.
Types: deb
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://mirror.example/debian-security/
Suites: bookworm-security
Components: main non-free-firmware
Check-Valid-Until: no
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 mDMEZ
 -----END PGP PUBLIC KEY BLOCK-----

Types: deb
URIs: https://vendor.example/apt
Suites: bookworm
Components: main
"""

ONE_LINE = """
# deb http://old.example/debian bookworm main
deb [arch=amd64,arm64 signed-by=/usr/share/keyrings/d.gpg] http://mirror.example/debian bookworm main contrib # comment
deb-src http://mirror.example/debian bookworm main
deb file:/srv/cuda/ /
"""


def test_deb822_is_read_with_options_and_embedded_keys():
    first, second, third = sources.parse_deb822(FRESH, "/x")
    assert first.suites == ("bookworm", "bookworm-updates") and first.components == ("main",)
    assert dict(second.options)["Check-Valid-Until"] == "no"
    assert dict(second.options)["Signed-By"].startswith("\n -----BEGIN")
    assert third.options == ()


def test_one_line_is_read_with_options():
    found = sources.parse_one_line(ONE_LINE, "/x")
    assert [one.types for one in found] == [("deb",), ("deb-src",), ("deb",)]
    assert found[0].components == ("main", "contrib")
    assert dict(found[0].options) == {"Architectures": "amd64 arm64", "Signed-By": "/usr/share/keyrings/d.gpg"}
    assert found[2].suites == ("/",) and found[2].components == ()


def test_what_debians_sources_lack_is_derived_from_them():
    text = sources.distribution_text(
        sources.parse_deb822(FRESH), "debian", "bookworm", {("https://vendor.example/apt", "bookworm")}
    )
    first, second = sources.parse_deb822(text)
    assert first.uris == ("http://mirror.example/debian",) and first.suites == ("bookworm", "bookworm-updates")
    assert first.components == ("contrib", "non-free", "non-free-firmware")
    assert dict(first.options) == {"Signed-By": "/usr/share/keyrings/debian-archive-keyring.gpg"}
    assert second.components == ("contrib", "non-free")
    assert "mDMEZ" in text and "Check-Valid-Until: no" in text
    assert "vendor.example" not in text


def test_nothing_is_derived_where_nothing_lacks():
    text = FRESH.replace("Components: main", "Components: main contrib non-free non-free-firmware")
    text = text.replace("non-free-firmware non-free-firmware", "non-free-firmware")
    foreign = {("https://vendor.example/apt", "bookworm")}
    assert sources.distribution_text(sources.parse_deb822(text), "debian", "bookworm", foreign) == ""


def test_components_in_a_second_entry_count():
    more = "deb http://mirror.example/debian bookworm contrib non-free non-free-firmware\n"
    found = sources.parse_one_line("deb http://mirror.example/debian/ bookworm main\n" + more)
    assert sources.distribution_text(found, "debian", "bookworm") == ""


def test_suites_of_others_are_not_the_distributions():
    text = "deb http://apt.example/pgdg bookworm-pgdg main\ndeb http://d.example/docker bookworm stable\n"
    assert sources.distribution_text(sources.parse_one_line(text), "debian", "bookworm") == ""


def test_ubuntu_lacks_restricted():
    found = sources.parse_one_line("deb http://mirror.example/ubuntu noble main universe\n")
    assert "Components: restricted\n" in sources.distribution_text(found, "ubuntu", "noble")


def test_cud_02_a_second_definition_of_a_repository_is_found_with_its_file():
    found = sources.parse_one_line("deb [signed-by=/k.gpg] https://cuda.example/debian12/x86_64/ /\n", "/cuda.list")
    text = "deb https://cuda.example/debian12/x86_64 /\ndeb http://o.example x main\n"
    mixed = sources.parse_one_line(text, "/m.list")
    both = sources.duplicates(found + mixed, "https://cuda.example/debian12/x86_64")
    assert both == {"/cuda.list": True, "/m.list": False}
    assert sources.duplicates(found, "https://other.example") == {}
    local = sources.parse_one_line("deb file:///srv/cuda /\n", "/f")
    assert sources.duplicates(local, "file:/srv/cuda/") == {"/f": True}


def test_a_disabled_entry_is_no_definition():
    assert not sources.parse_deb822("Enabled: no\nTypes: deb\nURIs: u\nSuites: s\n")[0].enabled


def test_a_flat_repository_has_no_components():
    text = sources.repository_text("file:/srv/cuda", "", (), "/k.asc")
    assert text == "Types: deb\nURIs: file:/srv/cuda\nSuites: /\nSigned-By: /k.asc\n"


def test_files_of_the_node_are_read_and_ours_is_not(tmp_path):
    folder = tmp_path / "etc/apt/sources.list.d"
    folder.mkdir(parents=True)
    (tmp_path / "etc/apt/sources.list").write_text("deb http://a.example x main\n")
    (folder / "b.sources").write_text("Types: deb\nURIs: http://b.example\nSuites: x\n")
    (folder / "ours.sources").write_text("Types: deb\nURIs: http://c.example\nSuites: x\n")
    (folder / "d.list.disabled").write_text("deb http://d.example x main\n")
    found = sources.read_sources(str(tmp_path), ignore=("/etc/apt/sources.list.d/ours.sources",))
    assert [one.uris[0] for one in found] == ["http://a.example", "http://b.example"]


def test_a_definition_with_a_login_is_the_same_repository():
    found = sources.parse_one_line("deb https://u:p@m.example.com/cuda/ /\n", "/etc/apt/sources.list.d/x.list")
    assert sources.duplicates(found, "https://m.example.com/cuda") == {"/etc/apt/sources.list.d/x.list": True}
