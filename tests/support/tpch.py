"""TPC-H: its tables with a few made rows, and its 22 queries with their validation parameters.

The rows are not dbgen's: they take the words and ranges that the queries look for more often, so that
every query finds some among few rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, timedelta
from random import Random
from typing import Final

TABLES: Final = (
    "CREATE TABLE region (r_regionkey integer PRIMARY KEY, r_name char(25) NOT NULL, r_comment varchar(152))",
    "CREATE TABLE nation (n_nationkey integer PRIMARY KEY, n_name char(25) NOT NULL, n_regionkey integer NOT NULL, n_comment varchar(152))",
    "CREATE TABLE part (p_partkey integer PRIMARY KEY, p_name varchar(55) NOT NULL, p_mfgr char(25) NOT NULL, p_brand char(10) NOT NULL, p_type varchar(25) NOT NULL, p_size integer NOT NULL, p_container char(10) NOT NULL, p_retailprice decimal(15,2) NOT NULL, p_comment varchar(23) NOT NULL)",
    "CREATE TABLE supplier (s_suppkey integer PRIMARY KEY, s_name char(25) NOT NULL, s_address varchar(40) NOT NULL, s_nationkey integer NOT NULL, s_phone char(15) NOT NULL, s_acctbal decimal(15,2) NOT NULL, s_comment varchar(101) NOT NULL)",
    "CREATE TABLE partsupp (ps_partkey integer NOT NULL, ps_suppkey integer NOT NULL, ps_availqty integer NOT NULL, ps_supplycost decimal(15,2) NOT NULL, ps_comment varchar(199) NOT NULL, PRIMARY KEY (ps_partkey, ps_suppkey))",
    "CREATE TABLE customer (c_custkey integer PRIMARY KEY, c_name varchar(25) NOT NULL, c_address varchar(40) NOT NULL, c_nationkey integer NOT NULL, c_phone char(15) NOT NULL, c_acctbal decimal(15,2) NOT NULL, c_mktsegment char(10) NOT NULL, c_comment varchar(117) NOT NULL)",
    "CREATE TABLE orders (o_orderkey integer PRIMARY KEY, o_custkey integer NOT NULL, o_orderstatus char(1) NOT NULL, o_totalprice decimal(15,2) NOT NULL, o_orderdate date NOT NULL, o_orderpriority char(15) NOT NULL, o_clerk char(15) NOT NULL, o_shippriority integer NOT NULL, o_comment varchar(79) NOT NULL)",
    "CREATE TABLE lineitem (l_orderkey integer NOT NULL, l_partkey integer NOT NULL, l_suppkey integer NOT NULL, l_linenumber integer NOT NULL, l_quantity decimal(15,2) NOT NULL, l_extendedprice decimal(15,2) NOT NULL, l_discount decimal(15,2) NOT NULL, l_tax decimal(15,2) NOT NULL, l_returnflag char(1) NOT NULL, l_linestatus char(1) NOT NULL, l_shipdate date NOT NULL, l_commitdate date NOT NULL, l_receiptdate date NOT NULL, l_shipinstruct char(25) NOT NULL, l_shipmode char(10) NOT NULL, l_comment varchar(44) NOT NULL, PRIMARY KEY (l_orderkey, l_linenumber))",
)

_REGIONS = ("AFRICA", "AMERICA", "ASIA", "EUROPE", "MIDDLE EAST")
_NATIONS = (
    ("BRAZIL", 1), ("CANADA", 1), ("FRANCE", 3), ("GERMANY", 3), ("INDIA", 2),
    ("CHINA", 2), ("SAUDI ARABIA", 4), ("KENYA", 0),
)  # fmt: skip
_WORDS = ("forest", "green", "almond", "blue", "steel", "ghost")
_TYPES = (
    "ECONOMY ANODIZED STEEL",
    "PROMO BURNISHED COPPER",
    "MEDIUM POLISHED BRASS",
    "SMALL PLATED BRASS",
)
_CONTAINERS = ("SM CASE", "MED BOX", "MED BAG", "LG BOX", "SM PKG", "LG PACK")
_SEGMENTS = ("BUILDING", "AUTOMOBILE", "MACHINERY")
_PRIORITIES = ("1-URGENT", "2-HIGH", "3-MEDIUM", "5-LOW")
_MODES = ("MAIL", "SHIP", "AIR", "AIR REG", "TRUCK")
_INSTRUCTIONS = ("DELIVER IN PERSON", "COLLECT COD")
_COMMENTS = (
    "special packages requests",
    "Customer x Complaints",
    "carefully final deposits",
    "quickly even",
)


def rows(seed: int = 1) -> Iterator[str]:
    """INSERT statements for all tables."""
    random = Random(seed)
    yield from (
        f"INSERT INTO region VALUES ({key}, '{name}', 'c')" for key, name in enumerate(_REGIONS)
    )
    yield from (
        f"INSERT INTO nation VALUES ({key}, '{name}', {region}, 'c')"
        for key, (name, region) in enumerate(_NATIONS)
    )
    yield _insert("part", [_part(random, key) for key in range(1, 41)])
    yield _insert("supplier", [_supplier(random, key) for key in range(1, 13)])
    pairs = [(part, 1 + (part * 5 + place * 3) % 12) for part in range(1, 41) for place in range(3)]
    yield _insert(
        "partsupp",
        [
            f"{part}, {supplier}, {random.randint(1, 9999)}, {_money(random, 1, 1000)}, 'c'"
            for part, supplier in pairs
        ],
    )
    yield _insert("customer", [_customer(random, key) for key in range(1, 31)])
    orders, lines = [], []
    for key in range(1, 161):
        day = date(1992, 1, 1) + timedelta(days=random.randint(0, 2400))
        orders.append(_order(random, key, day))
        for number in range(1, random.randint(2, 7)):
            part, supplier = random.choice(pairs)
            lines.append(_line(random, f"{key}, {part}, {supplier}, {number}", day))
    yield _insert("orders", orders)
    yield _insert("lineitem", lines)


def _insert(table: str, made: list[str]) -> str:
    return f"INSERT INTO {table} VALUES " + ", ".join(f"({row})" for row in made)


def _money(random: Random, least: int, most: int) -> str:
    return f"{random.randint(least * 100, most * 100) / 100:.2f}"


def _part(random: Random, key: int) -> str:
    name = " ".join(random.sample(_WORDS, 3))
    brand = random.choice(("Brand#12", "Brand#23", "Brand#34", "Brand#45"))
    size = random.choice((1, 3, 5, 9, 14, 15, 19, 23, 36, 45, 49))
    return f"{key}, '{name}', 'Manufacturer#{key % 5}', '{brand}', '{random.choice(_TYPES)}', {size}, '{random.choice(_CONTAINERS)}', {_money(random, 900, 2000)}, 'c'"


def _supplier(random: Random, key: int) -> str:
    return f"{key}, 'Supplier#{key:09}', 'address {key}', {key % 8}, '{10 + key}-555-{key:04}', {_money(random, -900, 9000)}, '{random.choice(_COMMENTS)}'"


def _customer(random: Random, key: int) -> str:
    code = random.choice((13, 31, 23, 29, 30, 18, 17, 11))
    return f"{key}, 'Customer#{key:09}', 'address {key}', {key % 8}, '{code}-555-{key:04}', {_money(random, -900, 9000)}, '{random.choice(_SEGMENTS)}', '{random.choice(_COMMENTS)}'"


def _order(random: Random, key: int, day: date) -> str:
    return f"{key}, {random.choice(range(1, 21))}, '{random.choice('FOP')}', {_money(random, 900, 400000)}, '{day}', '{random.choice(_PRIORITIES)}', 'Clerk#{key % 9}', 0, '{random.choice(_COMMENTS)}'"


def _line(random: Random, keys: str, day: date) -> str:
    shipped = day + timedelta(days=random.randint(1, 121))
    committed = day + timedelta(days=random.randint(30, 90))
    received = shipped + timedelta(days=random.randint(1, 30))
    quantity = random.choice((1, 3, 8, 15, 23, 24, 30, 49, 50))
    return (
        f"{keys}, {quantity}, {_money(random, 900, 90000)}, 0.{random.randint(0, 10):02}, 0.{random.randint(0, 8):02}, "
        f"'{random.choice('RAN')}', '{random.choice('OF')}', '{shipped}', '{committed}', '{received}', "
        f"'{random.choice(_INSTRUCTIONS)}', '{random.choice(_MODES)}', 'c'"
    )


QUERIES: Final[tuple[str, ...]] = (
    """select l_returnflag, l_linestatus, sum(l_quantity) as sum_qty, sum(l_extendedprice) as sum_base_price,
    sum(l_extendedprice * (1 - l_discount)) as sum_disc_price,
    sum(l_extendedprice * (1 - l_discount) * (1 + l_tax)) as sum_charge, avg(l_quantity) as avg_qty,
    avg(l_extendedprice) as avg_price, avg(l_discount) as avg_disc, count(*) as count_order
    from lineitem where l_shipdate <= date '1998-12-01' - interval '90' day
    group by l_returnflag, l_linestatus order by l_returnflag, l_linestatus""",
    """select s_acctbal, s_name, n_name, p_partkey, p_mfgr, s_address, s_phone, s_comment
    from part, supplier, partsupp, nation, region
    where p_partkey = ps_partkey and s_suppkey = ps_suppkey and p_size = 15 and p_type like '%BRASS'
    and s_nationkey = n_nationkey and n_regionkey = r_regionkey and r_name = 'EUROPE'
    and ps_supplycost = (select min(ps_supplycost) from partsupp, supplier, nation, region
        where p_partkey = ps_partkey and s_suppkey = ps_suppkey and s_nationkey = n_nationkey
        and n_regionkey = r_regionkey and r_name = 'EUROPE')
    order by s_acctbal desc, n_name, s_name, p_partkey limit 100""",
    """select l_orderkey, sum(l_extendedprice * (1 - l_discount)) as revenue, o_orderdate, o_shippriority
    from customer, orders, lineitem where c_mktsegment = 'BUILDING' and c_custkey = o_custkey
    and l_orderkey = o_orderkey and o_orderdate < date '1995-03-15' and l_shipdate > date '1995-03-15'
    group by l_orderkey, o_orderdate, o_shippriority order by revenue desc, o_orderdate limit 10""",
    """select o_orderpriority, count(*) as order_count from orders
    where o_orderdate >= date '1993-07-01' and o_orderdate < date '1993-07-01' + interval '3' month
    and exists (select * from lineitem where l_orderkey = o_orderkey and l_commitdate < l_receiptdate)
    group by o_orderpriority order by o_orderpriority""",
    """select n_name, sum(l_extendedprice * (1 - l_discount)) as revenue
    from customer, orders, lineitem, supplier, nation, region
    where c_custkey = o_custkey and l_orderkey = o_orderkey and l_suppkey = s_suppkey
    and c_nationkey = s_nationkey and s_nationkey = n_nationkey and n_regionkey = r_regionkey
    and r_name = 'ASIA' and o_orderdate >= date '1994-01-01'
    and o_orderdate < date '1994-01-01' + interval '1' year group by n_name order by revenue desc""",
    """select sum(l_extendedprice * l_discount) as revenue from lineitem
    where l_shipdate >= date '1994-01-01' and l_shipdate < date '1994-01-01' + interval '1' year
    and l_discount between 0.06 - 0.01 and 0.06 + 0.01 and l_quantity < 24""",
    """select supp_nation, cust_nation, l_year, sum(volume) as revenue from (
        select n1.n_name as supp_nation, n2.n_name as cust_nation, extract(year from l_shipdate) as l_year,
        l_extendedprice * (1 - l_discount) as volume
        from supplier, lineitem, orders, customer, nation n1, nation n2
        where s_suppkey = l_suppkey and o_orderkey = l_orderkey and c_custkey = o_custkey
        and s_nationkey = n1.n_nationkey and c_nationkey = n2.n_nationkey
        and ((n1.n_name = 'FRANCE' and n2.n_name = 'GERMANY') or (n1.n_name = 'GERMANY' and n2.n_name = 'FRANCE'))
        and l_shipdate between date '1995-01-01' and date '1996-12-31') as shipping
    group by supp_nation, cust_nation, l_year order by supp_nation, cust_nation, l_year""",
    """select o_year, sum(case when nation = 'BRAZIL' then volume else 0 end) / sum(volume) as mkt_share from (
        select extract(year from o_orderdate) as o_year, l_extendedprice * (1 - l_discount) as volume,
        n2.n_name as nation from part, supplier, lineitem, orders, customer, nation n1, nation n2, region
        where p_partkey = l_partkey and s_suppkey = l_suppkey and l_orderkey = o_orderkey
        and o_custkey = c_custkey and c_nationkey = n1.n_nationkey and n1.n_regionkey = r_regionkey
        and r_name = 'AMERICA' and s_nationkey = n2.n_nationkey
        and o_orderdate between date '1995-01-01' and date '1996-12-31'
        and p_type = 'ECONOMY ANODIZED STEEL') as all_nations group by o_year order by o_year""",
    """select nation, o_year, sum(amount) as sum_profit from (
        select n_name as nation, extract(year from o_orderdate) as o_year,
        l_extendedprice * (1 - l_discount) - ps_supplycost * l_quantity as amount
        from part, supplier, lineitem, partsupp, orders, nation
        where s_suppkey = l_suppkey and ps_suppkey = l_suppkey and ps_partkey = l_partkey
        and p_partkey = l_partkey and o_orderkey = l_orderkey and s_nationkey = n_nationkey
        and p_name like '%green%') as profit
    group by nation, o_year order by nation, o_year desc""",
    """select c_custkey, c_name, sum(l_extendedprice * (1 - l_discount)) as revenue, c_acctbal, n_name,
    c_address, c_phone, c_comment from customer, orders, lineitem, nation
    where c_custkey = o_custkey and l_orderkey = o_orderkey and o_orderdate >= date '1993-10-01'
    and o_orderdate < date '1993-10-01' + interval '3' month and l_returnflag = 'R' and c_nationkey = n_nationkey
    group by c_custkey, c_name, c_acctbal, c_phone, n_name, c_address, c_comment order by revenue desc limit 20""",
    """select ps_partkey, sum(ps_supplycost * ps_availqty) as value from partsupp, supplier, nation
    where ps_suppkey = s_suppkey and s_nationkey = n_nationkey and n_name = 'GERMANY' group by ps_partkey
    having sum(ps_supplycost * ps_availqty) > (select sum(ps_supplycost * ps_availqty) * 0.0001
        from partsupp, supplier, nation where ps_suppkey = s_suppkey and s_nationkey = n_nationkey
        and n_name = 'GERMANY') order by value desc""",
    """select l_shipmode, sum(case when o_orderpriority = '1-URGENT' or o_orderpriority = '2-HIGH'
    then 1 else 0 end) as high_line_count, sum(case when o_orderpriority <> '1-URGENT'
    and o_orderpriority <> '2-HIGH' then 1 else 0 end) as low_line_count from orders, lineitem
    where o_orderkey = l_orderkey and l_shipmode in ('MAIL', 'SHIP') and l_commitdate < l_receiptdate
    and l_shipdate < l_commitdate and l_receiptdate >= date '1994-01-01'
    and l_receiptdate < date '1994-01-01' + interval '1' year group by l_shipmode order by l_shipmode""",
    """select c_count, count(*) as custdist from (select c_custkey, count(o_orderkey) from customer
        left outer join orders on c_custkey = o_custkey and o_comment not like '%special%requests%'
        group by c_custkey) as c_orders (c_custkey, c_count)
    group by c_count order by custdist desc, c_count desc""",
    """select 100.00 * sum(case when p_type like 'PROMO%' then l_extendedprice * (1 - l_discount) else 0 end)
    / sum(l_extendedprice * (1 - l_discount)) as promo_revenue from lineitem, part
    where l_partkey = p_partkey and l_shipdate >= date '1995-09-01'
    and l_shipdate < date '1995-09-01' + interval '1' month""",
    """with revenue (supplier_no, total_revenue) as (select l_suppkey, sum(l_extendedprice * (1 - l_discount))
        from lineitem where l_shipdate >= date '1996-01-01'
        and l_shipdate < date '1996-01-01' + interval '3' month group by l_suppkey)
    select s_suppkey, s_name, s_address, s_phone, total_revenue from supplier, revenue
    where s_suppkey = supplier_no and total_revenue = (select max(total_revenue) from revenue)
    order by s_suppkey""",
    """select p_brand, p_type, p_size, count(distinct ps_suppkey) as supplier_cnt from partsupp, part
    where p_partkey = ps_partkey and p_brand <> 'Brand#45' and p_type not like 'MEDIUM POLISHED%'
    and p_size in (49, 14, 23, 45, 19, 3, 36, 9) and ps_suppkey not in (select s_suppkey from supplier
        where s_comment like '%Customer%Complaints%')
    group by p_brand, p_type, p_size order by supplier_cnt desc, p_brand, p_type, p_size""",
    """select sum(l_extendedprice) / 7.0 as avg_yearly from lineitem, part where p_partkey = l_partkey
    and p_brand = 'Brand#23' and p_container like 'MED%'
    and l_quantity < (select 0.9 * avg(l_quantity) from lineitem where l_partkey = p_partkey)""",
    """select c_name, c_custkey, o_orderkey, o_orderdate, o_totalprice, sum(l_quantity)
    from customer, orders, lineitem where o_orderkey in (select l_orderkey from lineitem
        group by l_orderkey having sum(l_quantity) > 100)
    and c_custkey = o_custkey and o_orderkey = l_orderkey
    group by c_name, c_custkey, o_orderkey, o_orderdate, o_totalprice
    order by o_totalprice desc, o_orderdate limit 100""",
    """select sum(l_extendedprice * (1 - l_discount)) as revenue from lineitem, part
    where (p_partkey = l_partkey and p_brand = 'Brand#12'
        and p_container in ('SM CASE', 'SM BOX', 'SM PACK', 'SM PKG') and l_quantity >= 1 and l_quantity <= 11
        and p_size between 1 and 5 and l_shipmode in ('AIR', 'AIR REG')
        and l_shipinstruct = 'DELIVER IN PERSON')
    or (p_partkey = l_partkey and p_brand = 'Brand#23'
        and p_container in ('MED BAG', 'MED BOX', 'MED PKG', 'MED PACK') and l_quantity >= 10 and l_quantity <= 20
        and p_size between 1 and 50 and l_shipmode in ('AIR', 'AIR REG')
        and l_shipinstruct = 'DELIVER IN PERSON')
    or (p_partkey = l_partkey and p_brand = 'Brand#34'
        and p_container in ('LG CASE', 'LG BOX', 'LG PACK', 'LG PKG') and l_quantity >= 20 and l_quantity <= 50
        and p_size between 1 and 50 and l_shipmode in ('AIR', 'AIR REG')
        and l_shipinstruct = 'DELIVER IN PERSON')""",
    """select s_name, s_address from supplier, nation where s_suppkey in (select ps_suppkey from partsupp
        where ps_partkey in (select p_partkey from part where p_name like 'forest%')
        and ps_availqty > (select 0.5 * sum(l_quantity) from lineitem where l_partkey = ps_partkey
            and l_suppkey = ps_suppkey and l_shipdate >= date '1994-01-01'
            and l_shipdate < date '1994-01-01' + interval '1' year))
    and s_nationkey = n_nationkey and n_name = 'CANADA' order by s_name""",
    """select s_name, count(*) as numwait from supplier, lineitem l1, orders, nation
    where s_suppkey = l1.l_suppkey and o_orderkey = l1.l_orderkey and o_orderstatus = 'F'
    and l1.l_receiptdate > l1.l_commitdate and exists (select * from lineitem l2
        where l2.l_orderkey = l1.l_orderkey and l2.l_suppkey <> l1.l_suppkey)
    and not exists (select * from lineitem l3 where l3.l_orderkey = l1.l_orderkey
        and l3.l_suppkey <> l1.l_suppkey and l3.l_receiptdate > l3.l_commitdate)
    and s_nationkey = n_nationkey and n_name = 'SAUDI ARABIA'
    group by s_name order by numwait desc, s_name limit 100""",
    """select cntrycode, count(*) as numcust, sum(c_acctbal) as totacctbal from (
        select substring(c_phone from 1 for 2) as cntrycode, c_acctbal from customer
        where substring(c_phone from 1 for 2) in ('13', '31', '23', '29', '30', '18', '17')
        and c_acctbal > (select avg(c_acctbal) from customer where c_acctbal > 0.00
            and substring(c_phone from 1 for 2) in ('13', '31', '23', '29', '30', '18', '17'))
        and not exists (select * from orders where o_custkey = c_custkey)) as custsale
    group by cntrycode order by cntrycode""",
)
