"""Questions of Django to a server, printed as JSON with their answers or the errors' classes."""

from __future__ import annotations

import io
import json
import os
import sys
import types
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from typing import Any

import django
from django.conf import settings
from django.core.management import call_command
from django.db import DatabaseError, connection, transaction
from django.db.models import (
    Avg,
    Case,
    Count,
    Exists,
    F,
    Max,
    OuterRef,
    Q,
    Subquery,
    Sum,
    Value,
    When,
    Window,
)
from django.db.models.functions import (
    Coalesce,
    ExtractYear,
    Length,
    Rank,
    TruncDay,
    TruncMonth,
    Upper,
)

ANSWERS: dict[str, object] = {}
TABLES = ["Mixed Case", "customers", "events", "items", "numbers", "open_orders", "orders"]


def configure() -> None:
    settings.configure(
        USE_TZ=True,
        TIME_ZONE="UTC",
        INSTALLED_APPS=["django.contrib.postgres"],
        DATABASES={
            "default": {
                "ENGINE": "django.db.backends.postgresql",
                "NAME": os.environ["PGDATABASE"],
                "OPTIONS": {"server_side_binding": os.environ.get("SERVER_SIDE_BINDING") == "yes"},
            }
        },
    )
    django.setup()


def ask(question: str, answer: Callable[[], object]) -> None:
    try:
        ANSWERS[question] = repr(answer())
    except DatabaseError as error:
        state = getattr(error.__cause__, "sqlstate", None)
        ANSWERS[question] = f"failed: {type(error).__name__} {state}"


def introspection() -> str:
    found = connection.introspection
    with connection.cursor() as cursor:
        ask(
            "tables",
            lambda: sorted(
                (each.name, each.type, each.comment) for each in found.get_table_list(cursor)
            ),
        )
        for table in TABLES:
            for name, get in {
                "columns": found.get_table_description,
                "key": found.get_primary_key_columns,
                "relations": found.get_relations,
                "constraints": found.get_constraints,
                "sequences": found.get_sequences,
            }.items():
                ask(f"{name} of {table}", partial(get, cursor, table))
    models = io.StringIO()
    call_command("inspectdb", *TABLES, stdout=models)
    ANSWERS["inspectdb"] = models.getvalue()
    return models.getvalue()


def queries(models: Any) -> None:
    orders, customers = models.Orders.objects, models.Customers.objects
    ask("all rows", lambda: list(customers.order_by("id").values()))
    ask("rows of orders", lambda: list(orders.order_by("id").values_list()[:40]))
    ask("a view", lambda: list(models.OpenOrders.objects.order_by("id").values()[:20]))
    ask("one object", lambda: orders.get(id=17).note)
    ask("an object that is not there", lambda: orders.filter(id=-1).first())
    ask("filters", lambda: list(
        orders.filter(Q(note__icontains="№1") | Q(total__gt=Decimal("4900.5")), placed__year=2024, shipped__isnull=False)
        .exclude(state="new").order_by("-total", "id").values_list("id", "total", "state")[:30]))  # fmt: skip
    ask("looks at dates", lambda: list(
        orders.filter(placed__gte=datetime(2024, 5, 3, tzinfo=UTC), placed__date__lt="2024-05-05", placed__hour__in=[3, 4])
        .order_by("id").values_list("id", "placed")))  # fmt: skip
    analysis(models)
    combinations(models)


def analysis(models: Any) -> None:
    orders = models.Orders.objects
    ask(
        "aggregates",
        lambda: orders.aggregate(
            Sum("total"), Avg("total"), Max("placed"), Count("note"), Avg("weight")
        ),
    )
    ask("groups", lambda: list(
        orders.values("state").annotate(n=Count("id"), t=Sum("total")).filter(n__gt=10).order_by(F("state").asc(nulls_first=True))))  # fmt: skip
    ask("groups by month and day", lambda: list(
        orders.annotate(m=TruncMonth("placed"), d=TruncDay("placed")).values("m", "d").annotate(n=Count("id")).order_by("d")))  # fmt: skip
    ask("expressions", lambda: list(
        orders.filter(id__lt=20).order_by("id").annotate(
            double=F("total") * 2, y=ExtractYear("shipped"), u=Upper("note"), size=Length(Coalesce("note", Value("?"))),
            kind=Case(When(weight__gt=1.5, then=Value("heavy")), default=Value("light")),
        ).values_list("id", "double", "y", "u", "size", "kind")))  # fmt: skip
    ask("a window", lambda: list(
        orders.filter(id__lt=200).annotate(r=Window(Rank(), partition_by="customer_id", order_by="-total"))
        .order_by("customer_id", "r", "id").values_list("id", "r")[:50]))  # fmt: skip


def combinations(models: Any) -> None:
    orders, customers, items = models.Orders.objects, models.Customers.objects, models.Items.objects
    ask("a subquery", lambda: list(
        customers.annotate(last=Subquery(orders.filter(customer_id=OuterRef("id")).order_by("-placed").values("id")[:1]))
        .filter(Exists(orders.filter(customer_id=OuterRef("id"), shipped=None))).order_by("id").values_list("id", "last")))  # fmt: skip
    ask(
        "json",
        lambda: list(
            customers.filter(profile__level=2).order_by("id").values_list("id", "profile__names")
        ),
    )
    ask(
        "a regular expression",
        lambda: list(
            customers.filter(name__regex=r"^Customer \d$").order_by("id").values_list("name")
        ),
    )
    ask("a union", lambda: list(
        orders.filter(id__lt=4).values_list("id").union(orders.filter(id__gt=1498).values_list("id")).order_by("id")))  # fmt: skip
    ask(
        "distinct values",
        lambda: list(items.order_by("product").values_list("product", flat=True).distinct()),
    )
    ask(
        "pages",
        lambda: [
            list(orders.order_by("id")[at : at + 3].values_list("id", flat=True))
            for at in (0, 3, 1499)
        ],
    )
    ask(
        "existence",
        lambda: (orders.filter(id=3).exists(), orders.filter(id=-3).exists(), orders.count()),
    )
    ask(
        "an iterator",
        lambda: sum(each.id for each in orders.order_by("id").iterator(chunk_size=100)),
    )
    ask(
        "raw SQL",
        lambda: [
            each.total for each in orders.raw("SELECT * FROM orders WHERE id < %s ORDER BY id", [5])
        ],
    )
    ask("a write", lambda: orders.filter(id=1).delete())

    def saved() -> object:
        with transaction.atomic():
            before = orders.count()
            try:
                with transaction.atomic():
                    list(orders.annotate(x=F("id") / (F("id") - 4)).values_list("x"))
            except DatabaseError as error:
                return before, type(error).__name__, items.count()
        return None

    ask("a savepoint", saved)


def main() -> None:
    configure()
    text = introspection()
    models = types.ModuleType("shop.models")
    sys.modules["shop.models"] = models
    # What inspectdb writes needs an app around it.
    exec(text.replace("class Meta:", "class Meta:\n        app_label = 'shop'"), models.__dict__)  # noqa: S102  # its own output
    queries(models)
    json.dump(ANSWERS, sys.stdout)


if __name__ == "__main__":
    main()
