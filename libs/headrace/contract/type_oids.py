"""OIDs of PostgreSQL's built-in types, which are the same in every database and version.

Owns only numbers, from pg_type.dat. Types of users and extensions have no fixed OID: a `TypeInfo`
from the catalog describes those.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

BOOL: Final = 16
BYTEA: Final = 17
INT8: Final = 20
INT2: Final = 21
INT4: Final = 23
OID: Final = 26
JSON: Final = 114
BOX: Final = 603
FLOAT4: Final = 700
FLOAT8: Final = 701
MONEY: Final = 790
DATE: Final = 1082
TIMESTAMP: Final = 1114
TIMESTAMPTZ: Final = 1184
TIMETZ: Final = 1266
NUMERIC: Final = 1700
JSONB: Final = 3802
# Types below this are built in: their forms need no catalog.
FIRST_USER: Final = 16384

# From pg_type of PostgreSQL 18: typarray and oid, without catalog row types.
_ELEMENTS_OF_ARRAYS = (
    "1000:16 1001:17 1002:18 1003:19 1016:20 1005:21 1006:22 1007:23 1008:24 1009:25 1028:26 "
    "1010:27 1011:28 1012:29 "
    "1013:30 199:114 143:142 1017:600 1018:601 1019:602 1020:603 1027:604 629:628 651:650 1021:700 "
    "1022:701 719:718 "
    "775:774 791:790 1040:829 1041:869 1034:1033 1014:1042 1015:1043 1182:1082 1183:1083 1115:1114 "
    "1185:1184 "
    "1187:1186 1270:1266 1561:1560 1563:1562 1231:1700 2201:1790 2207:2202 2208:2203 2209:2204 "
    "2210:2205 2211:2206 "
    "2287:2249 1263:2275 2951:2950 2949:2970 3221:3220 3643:3614 3645:3615 3644:3642 3735:3734 "
    "3770:3769 3807:3802 "
    "3905:3904 3907:3906 3909:3908 3911:3910 3913:3912 3927:3926 4073:4072 4090:4089 4097:4096 "
    "4192:4191 6150:4451 "
    "6151:4532 6152:4533 6153:4534 6155:4535 6157:4536 5039:5038 271:5069"
)


def _element_oids() -> dict[int, int]:
    pairs = (pair.split(":") for pair in _ELEMENTS_OF_ARRAYS.split())
    return {int(array): int(element) for array, element in pairs}


ELEMENT_OIDS: Final[Mapping[int, int]] = MappingProxyType(_element_oids())
"""The element type of each built-in array type."""
