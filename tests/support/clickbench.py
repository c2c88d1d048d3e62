"""ClickBench: the columns of its table that the queries use, a few made rows, and its 43 queries.

ORDER BY with LIMIT leaves ties open in the original queries; here it continues with the groups' columns,
so that the answer is one.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Final

TABLES: Final = (
    """CREATE TABLE hits (WatchID BIGINT NOT NULL, Title TEXT NOT NULL, EventTime TIMESTAMP NOT NULL,
    EventDate DATE NOT NULL, CounterID INTEGER NOT NULL, ClientIP INTEGER NOT NULL, RegionID INTEGER NOT NULL,
    UserID BIGINT NOT NULL, URL TEXT NOT NULL, Referer TEXT NOT NULL, IsRefresh SMALLINT NOT NULL,
    ResolutionWidth SMALLINT NOT NULL, MobilePhone SMALLINT NOT NULL, MobilePhoneModel TEXT NOT NULL,
    TraficSourceID SMALLINT NOT NULL, SearchEngineID SMALLINT NOT NULL, SearchPhrase TEXT NOT NULL,
    AdvEngineID SMALLINT NOT NULL, WindowClientWidth SMALLINT NOT NULL, WindowClientHeight SMALLINT NOT NULL,
    IsLink SMALLINT NOT NULL, IsDownload SMALLINT NOT NULL, DontCountHits SMALLINT NOT NULL,
    RefererHash BIGINT NOT NULL, URLHash BIGINT NOT NULL, PRIMARY KEY (WatchID))""",
)
_URLS = (
    "http://google.ru/a",
    "http://www.google.com/b",
    "http://example.org/",
    "",
    "https://yandex.ru/x?q=1",
)
_TITLES = ("Google search", "Google", "Новости", "")
_PHRASES = ("", "", "карта", "postgres", "weather tomorrow", "a")
_MODELS = ("", "", "iPhone", "Nokia")


def rows(seed: int = 1) -> Iterator[str]:
    """INSERT statements."""
    random = Random(seed)
    for number in range(1, 301):
        yield f"INSERT INTO hits VALUES ({_row(random, number)})"


def _row(random: Random, number: int) -> str:
    day = f"2013-07-{random.randint(1, 31):02}"
    clock = f"{random.randint(0, 23):02}:{random.randint(0, 3):02}:{random.randint(0, 59):02}"
    cells: list[object] = [
        9110818468285196899 - number, f"'{random.choice(_TITLES)}'", f"'{day} {clock}'", f"'{day}'",
        random.choice((62, 62, 62, 63)), random.randint(-5, 5) * 100000000, random.randint(1, 6),
        random.choice((435090932899640449, 1, 2, 3, 4, 9223372036854775807)), f"'{random.choice(_URLS)}'",
        f"'{random.choice(_URLS)}'", random.choice((0, 0, 1)), random.choice((1024, 1280, 1920)),
        random.randint(0, 3), f"'{random.choice(_MODELS)}'", random.choice((-1, 0, 6)), random.randint(0, 3),
        f"'{random.choice(_PHRASES)}'", random.choice((0, 0, 0, 2, 5)), random.randint(300, 303),
        random.randint(200, 202), random.choice((0, 1)), random.choice((0, 0, 1)), random.choice((0, 0, 1)),
        random.choice((3594120000172545465, 7)), random.choice((2868770270353813622, 8)),
    ]  # fmt: skip
    return ", ".join(str(cell) for cell in cells)


_LATE = "CounterID = 62 AND EventDate >= '2013-07-01' AND EventDate <= '2013-07-31'"
_WIDTHS = ", ".join(f"SUM(ResolutionWidth + {number})" for number in range(1, 90))

QUERIES: Final[tuple[str, ...]] = (
    "SELECT COUNT(*) FROM hits",
    "SELECT COUNT(*) FROM hits WHERE AdvEngineID <> 0",
    "SELECT SUM(AdvEngineID), COUNT(*), AVG(ResolutionWidth) FROM hits",
    "SELECT AVG(UserID) FROM hits",
    "SELECT COUNT(DISTINCT UserID) FROM hits",
    "SELECT COUNT(DISTINCT SearchPhrase) FROM hits",
    "SELECT MIN(EventDate), MAX(EventDate) FROM hits",
    "SELECT AdvEngineID, COUNT(*) FROM hits WHERE AdvEngineID <> 0 GROUP BY AdvEngineID ORDER BY COUNT(*) DESC, 1",
    "SELECT RegionID, COUNT(DISTINCT UserID) AS u FROM hits GROUP BY RegionID ORDER BY u DESC, 1 LIMIT 10",
    "SELECT RegionID, SUM(AdvEngineID), COUNT(*) AS c, AVG(ResolutionWidth), COUNT(DISTINCT UserID) FROM hits GROUP BY RegionID ORDER BY c DESC, 1 LIMIT 10",
    "SELECT MobilePhoneModel, COUNT(DISTINCT UserID) AS u FROM hits WHERE MobilePhoneModel <> '' GROUP BY MobilePhoneModel ORDER BY u DESC, 1 LIMIT 10",
    "SELECT MobilePhone, MobilePhoneModel, COUNT(DISTINCT UserID) AS u FROM hits WHERE MobilePhoneModel <> '' GROUP BY MobilePhone, MobilePhoneModel ORDER BY u DESC, 1, 2 LIMIT 10",
    "SELECT SearchPhrase, COUNT(*) AS c FROM hits WHERE SearchPhrase <> '' GROUP BY SearchPhrase ORDER BY c DESC, 1 LIMIT 10",
    "SELECT SearchPhrase, COUNT(DISTINCT UserID) AS u FROM hits WHERE SearchPhrase <> '' GROUP BY SearchPhrase ORDER BY u DESC, 1 LIMIT 10",
    "SELECT SearchEngineID, SearchPhrase, COUNT(*) AS c FROM hits WHERE SearchPhrase <> '' GROUP BY SearchEngineID, SearchPhrase ORDER BY c DESC, 1, 2 LIMIT 10",
    "SELECT UserID, COUNT(*) FROM hits GROUP BY UserID ORDER BY COUNT(*) DESC, 1 LIMIT 10",
    "SELECT UserID, SearchPhrase, COUNT(*) FROM hits GROUP BY UserID, SearchPhrase ORDER BY COUNT(*) DESC, 1, 2 LIMIT 10",
    "SELECT UserID, SearchPhrase, COUNT(*) FROM hits GROUP BY UserID, SearchPhrase ORDER BY 1, 2 LIMIT 10",
    "SELECT UserID, extract(minute FROM EventTime) AS m, SearchPhrase, COUNT(*) FROM hits GROUP BY UserID, m, SearchPhrase ORDER BY COUNT(*) DESC, 1, 2, 3 LIMIT 10",
    "SELECT UserID FROM hits WHERE UserID = 435090932899640449",
    "SELECT COUNT(*) FROM hits WHERE URL LIKE '%google%'",
    "SELECT SearchPhrase, MIN(URL), COUNT(*) AS c FROM hits WHERE URL LIKE '%google%' AND SearchPhrase <> '' GROUP BY SearchPhrase ORDER BY c DESC, 1 LIMIT 10",
    "SELECT SearchPhrase, MIN(URL), MIN(Title), COUNT(*) AS c, COUNT(DISTINCT UserID) FROM hits WHERE Title LIKE '%Google%' AND URL NOT LIKE '%.google.%' AND SearchPhrase <> '' GROUP BY SearchPhrase ORDER BY c DESC, 1 LIMIT 10",
    "SELECT * FROM hits WHERE URL LIKE '%google%' ORDER BY EventTime, WatchID LIMIT 10",
    "SELECT SearchPhrase FROM hits WHERE SearchPhrase <> '' ORDER BY EventTime, WatchID LIMIT 10",
    "SELECT SearchPhrase FROM hits WHERE SearchPhrase <> '' ORDER BY SearchPhrase LIMIT 10",
    "SELECT SearchPhrase FROM hits WHERE SearchPhrase <> '' ORDER BY EventTime, SearchPhrase LIMIT 10",
    "SELECT CounterID, AVG(length(URL)) AS l, COUNT(*) AS c FROM hits WHERE URL <> '' GROUP BY CounterID HAVING COUNT(*) > 10 ORDER BY l DESC LIMIT 25",
    r"SELECT REGEXP_REPLACE(Referer, '^https?://(?:www\.)?([^/]+)/.*$', '\1') AS k, AVG(length(Referer)) AS l, COUNT(*) AS c, MIN(Referer) FROM hits WHERE Referer <> '' GROUP BY k HAVING COUNT(*) > 10 ORDER BY l DESC, 1 LIMIT 25",
    f"SELECT SUM(ResolutionWidth), {_WIDTHS} FROM hits",
    "SELECT SearchEngineID, ClientIP, COUNT(*) AS c, SUM(IsRefresh), AVG(ResolutionWidth) FROM hits WHERE SearchPhrase <> '' GROUP BY SearchEngineID, ClientIP ORDER BY c DESC, 1, 2 LIMIT 10",
    "SELECT WatchID, ClientIP, COUNT(*) AS c, SUM(IsRefresh), AVG(ResolutionWidth) FROM hits WHERE SearchPhrase <> '' GROUP BY WatchID, ClientIP ORDER BY c DESC, 1, 2 LIMIT 10",
    "SELECT WatchID, ClientIP, COUNT(*) AS c, SUM(IsRefresh), AVG(ResolutionWidth) FROM hits GROUP BY WatchID, ClientIP ORDER BY c DESC, 1, 2 LIMIT 10",
    "SELECT URL, COUNT(*) AS c FROM hits GROUP BY URL ORDER BY c DESC, 1 LIMIT 10",
    "SELECT 1, URL, COUNT(*) AS c FROM hits GROUP BY 1, URL ORDER BY c DESC, 2 LIMIT 10",
    "SELECT ClientIP, ClientIP - 1, ClientIP - 2, ClientIP - 3, COUNT(*) AS c FROM hits GROUP BY ClientIP, ClientIP - 1, ClientIP - 2, ClientIP - 3 ORDER BY c DESC, 1 LIMIT 10",
    f"SELECT URL, COUNT(*) AS PageViews FROM hits WHERE {_LATE} AND DontCountHits = 0 AND IsRefresh = 0 AND URL <> '' GROUP BY URL ORDER BY PageViews DESC, 1 LIMIT 10",
    f"SELECT Title, COUNT(*) AS PageViews FROM hits WHERE {_LATE} AND DontCountHits = 0 AND IsRefresh = 0 AND Title <> '' GROUP BY Title ORDER BY PageViews DESC, 1 LIMIT 10",
    f"SELECT URL, COUNT(*) AS PageViews FROM hits WHERE {_LATE} AND IsRefresh = 0 AND IsLink <> 0 AND IsDownload = 0 GROUP BY URL ORDER BY PageViews DESC, 1 LIMIT 10 OFFSET 1",
    f"SELECT TraficSourceID, SearchEngineID, AdvEngineID, CASE WHEN (SearchEngineID = 0 AND AdvEngineID = 0) THEN Referer ELSE '' END AS Src, URL AS Dst, COUNT(*) AS PageViews FROM hits WHERE {_LATE} AND IsRefresh = 0 GROUP BY TraficSourceID, SearchEngineID, AdvEngineID, Src, Dst ORDER BY PageViews DESC, 1, 2, 3, 4, 5 LIMIT 10 OFFSET 10",
    f"SELECT URLHash, EventDate, COUNT(*) AS PageViews FROM hits WHERE {_LATE} AND IsRefresh = 0 AND TraficSourceID IN (-1, 6) AND RefererHash = 3594120000172545465 GROUP BY URLHash, EventDate ORDER BY PageViews DESC, 1, 2 LIMIT 10 OFFSET 1",
    f"SELECT WindowClientWidth, WindowClientHeight, COUNT(*) AS PageViews FROM hits WHERE {_LATE} AND IsRefresh = 0 AND DontCountHits = 0 AND URLHash = 2868770270353813622 GROUP BY WindowClientWidth, WindowClientHeight ORDER BY PageViews DESC, 1, 2 LIMIT 10 OFFSET 1",
    "SELECT DATE_TRUNC('minute', EventTime) AS M, COUNT(*) AS PageViews FROM hits WHERE CounterID = 62 AND EventDate >= '2013-07-14' AND EventDate <= '2013-07-15' AND IsRefresh = 0 AND DontCountHits = 0 GROUP BY DATE_TRUNC('minute', EventTime) ORDER BY DATE_TRUNC('minute', EventTime) LIMIT 10 OFFSET 1",
)
