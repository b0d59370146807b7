"""The CREATE texts of search tables, views and triggers that releases of Hermes write, by digest.

A release installs its own texts under names that never change, so only the text tells what a trigger feeds. Each name
maps the digest of a text (`hermes_store.sqlite.shape.text_digest`: comments and white space do not count) to the
layout it belongs to: ``0`` to ``3``, with a letter for the variants that later releases made of layout 0:

* ``0n``: the update trigger narrowed to the columns that are indexed (0.20.0 on);
* ``0h``: tool rows above a stored id cut to 8192 characters (0.21.3);
* ``0c``: every tool row cut to 8192 characters (0.21.5 on).

Found by letting every release from 0.13.0 to 0.22.2 open files of every layout, whole and with triggers missing. A
text that is not here was written by a newer or a changed Hermes: its index is neither used nor rebuilt.
"""

from __future__ import annotations

from collections.abc import Mapping

KNOWN_TEXTS: Mapping[str, Mapping[str, str]] = {
    "messages_fts": {
        "4701fedfbd88ce19": "0",
        "7d47fe2200e60550": "1",
        "e1ec172a095b4ac4": "3",
    },
    "messages_fts_src": {
        "a0105ef2c99dbab6": "3",
    },
    "messages_fts_insert": {
        "fdcd0e76aeaa288a": "0",
        "e021191cb2ccf8d8": "0c",
        "b83bbdefd6c10024": "0h",
        "e3a2b9e954f23883": "1",
        "d0a860b1b7f7f07f": "2",
        "3a7051324817d834": "3",
    },
    "messages_fts_update": {
        "8059f291814f4a3c": "0",
        "8807327d0426678b": "0c",
        "1ac32457b481d74b": "0h",
        "fb3e0f027b1856a1": "0n",
        "cbe633a37ffa8b47": "1",
        "53db73a223ca6ed2": "2",
        "a59107b753d46561": "3",
    },
    "messages_fts_delete": {
        "4bdbbf0802049b23": "0",
        "b7ee0e23f43245a5": "1",
        "da0865f3cab410b9": "2",
        "a35c52cbc66f9f49": "3",
    },
    "messages_fts_trigram": {
        "922ff19247024f3f": "0",
        "616660156576663c": "1",
        "f24d3899791044ce": "3",
    },
    "messages_fts_trigram_src": {
        "62d6318f33a8f757": "1",
        "d19ae8684830075c": "3",
    },
    "messages_fts_trigram_insert": {
        "fe01d9d874e5e678": "0",
        "2a927870612416e2": "0c",
        "da280d0c866fec85": "0h",
        "aed21c32cc5598f4": "1",
        "1571f919419f1f34": "3",
    },
    "messages_fts_trigram_update": {
        "8079d999f05144c1": "0",
        "ac4a4002a4d08dec": "0c",
        "a484cc8f8296fdd3": "0h",
        "4c35aeef068fc29f": "0n",
        "b03ee1b25da4b6a5": "1",
        "d8d49df4bb8f0ab5": "3",
    },
    "messages_fts_trigram_delete": {
        "64fb02c4c9269fd4": "0",
        "6070de4ba2ff1960": "1",
        "0e1c3fa26511c11e": "3",
    },
    "messages_fts_cjk": {
        "1f5f9dfb518fb3e7": "1",
    },
    "messages_fts_cjk_src": {
        "b2aa09dadac62b0f": "1",
    },
    "messages_fts_cjk_insert": {
        "b16da04106cfb400": "1",
    },
    "messages_fts_cjk_update": {
        "e43cd73f61e73ca2": "1",
    },
    "messages_fts_cjk_delete": {
        "572ffb983deabb2c": "1",
    },
}
