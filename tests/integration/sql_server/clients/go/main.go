// Questions of pgx to a server, printed as JSON with their answers or the errors' SQLSTATEs.
package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib"
)

const long = "SELECT count(*) FROM orders a, orders b, orders c, orders d WHERE a.id + b.id < c.id - d.id"

var answers = map[string]any{}

func failure(err error) string {
	var found *pgconn.PgError
	if errors.As(err, &found) {
		return fmt.Sprintf("failed: %s %s at %d", found.Code, found.Message, found.Position)
	}
	return "failed: " + err.Error()
}

func ask(question string, mode pgx.QueryExecMode, work func(context.Context, *pgx.Conn) (any, error)) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	config, err := pgx.ParseConfig("")
	if err != nil {
		panic(err)
	}
	config.DefaultQueryExecMode = mode
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		panic(err)
	}
	defer conn.Close(ctx)
	found, err := work(ctx, conn)
	if err != nil {
		found = failure(err)
	}
	answers[question] = found
}

func rows(ctx context.Context, conn *pgx.Conn, text string, values ...any) (any, error) {
	found, err := conn.Query(ctx, text, values...)
	if err != nil {
		return nil, err
	}
	defer found.Close()
	var all []any
	for _, field := range found.FieldDescriptions() {
		all = append(all, fmt.Sprintf("%s %d %d %d", field.Name, field.DataTypeOID, field.TypeModifier, field.Format))
	}
	for found.Next() {
		row, err := found.Values()
		if err != nil {
			return nil, err
		}
		for _, value := range row {
			all = append(all, fmt.Sprintf("%T %v", value, value))
		}
	}
	return all, found.Err()
}

func main() {
	modes := []pgx.QueryExecMode{
		pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec,
		pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
	}
	tables := []string{"customers", "orders", "events", "sales.targets", "sales.kinds", `"Mixed Case"`, "open_orders"}
	for _, mode := range modes {
		for _, table := range tables {
			ask(fmt.Sprintf("%v: values of %s", mode, table), mode, func(ctx context.Context, conn *pgx.Conn) (any, error) {
				return rows(ctx, conn, "SELECT * FROM "+table+" ORDER BY 1, 2 LIMIT 40")
			})
		}
		ask(fmt.Sprintf("%v: parameters", mode), mode, func(ctx context.Context, conn *pgx.Conn) (any, error) {
			var all []any
			for run := int32(0); run < 3; run++ {
				found, err := rows(ctx, conn, "SELECT id, name FROM customers WHERE id = ANY($1::int4[]) AND active = $2"+
					" AND joined > $3 AND name <> $4 AND birthday < $5 ORDER BY id",
					[]int32{1, 2, 3, 4, 5, 10 + run}, true, time.Date(2024, 3, 31, 0, 0, 0, 0, time.UTC), "it's",
					time.Date(1961, 1, 1, 0, 0, 0, 0, time.UTC))
				if err != nil {
					return nil, err
				}
				all = append(all, found)
			}
			return all, nil
		})
		ask(fmt.Sprintf("%v: an error", mode), mode, func(ctx context.Context, conn *pgx.Conn) (any, error) {
			return rows(ctx, conn, "SELECT id / (id - $1) FROM orders", int64(7))
		})
		ask(fmt.Sprintf("%v: an unknown column", mode), mode, func(ctx context.Context, conn *pgx.Conn) (any, error) {
			return rows(ctx, conn, "SELECT nothing FROM orders WHERE id = $1", int64(7))
		})
	}
	mode := pgx.QueryExecModeCacheStatement
	ask("a batch", mode, func(ctx context.Context, conn *pgx.Conn) (any, error) {
		batch := &pgx.Batch{}
		for id := 1; id < 20; id++ {
			batch.Queue("SELECT note, total::text FROM orders WHERE id = $1", int64(id))
			batch.Queue("SELECT count(*)::text, 'x' FROM items WHERE order_id < $1", int64(id))
		}
		results := conn.SendBatch(ctx, batch)
		defer results.Close()
		var all []any
		for range batch.QueuedQueries {
			var one, other *string
			if err := results.QueryRow().Scan(&one, &other); err != nil {
				return nil, err
			}
			all = append(all, one, other)
		}
		return all, results.Close()
	})
	ask("a batch whose second query fails", mode, func(ctx context.Context, conn *pgx.Conn) (any, error) {
		batch := &pgx.Batch{}
		batch.Queue("SELECT 1 FROM orders LIMIT 1")
		batch.Queue("SELECT id / 0 FROM orders")
		batch.Queue("SELECT 2 FROM orders LIMIT 1")
		err := conn.SendBatch(ctx, batch).Close()
		after, other := rows(ctx, conn, "SELECT count(*) FROM orders")
		return []any{failure(err), after}, other
	})
	ask("a transaction with a savepoint", mode, func(ctx context.Context, conn *pgx.Conn) (any, error) {
		outer, err := conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
		if err != nil {
			return nil, err
		}
		inner, err := outer.Begin(ctx)
		if err != nil {
			return nil, err
		}
		_, failed := inner.Exec(ctx, "SELECT id / 0 FROM orders")
		if err := inner.Rollback(ctx); err != nil {
			return nil, err
		}
		var count int
		if err := outer.QueryRow(ctx, "SELECT count(*) FROM orders").Scan(&count); err != nil {
			return nil, err
		}
		return []any{failure(failed), count}, outer.Commit(ctx)
	})
	ask("COPY", mode, func(ctx context.Context, conn *pgx.Conn) (any, error) {
		var text fileOf
		tag, err := conn.PgConn().CopyTo(ctx, &text, "COPY (SELECT id, note, placed FROM orders WHERE id < 40 ORDER BY id) TO STDOUT")
		return []any{tag.String(), string(text)}, err
	})
	ask("a cancelled context", mode, func(ctx context.Context, conn *pgx.Conn) (any, error) {
		short, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
		defer cancel()
		_, err := rows(short, conn, long)
		return []any{errors.Is(err, context.DeadlineExceeded), conn.IsClosed()}, nil
	})
	ask("a request to cancel", mode, func(ctx context.Context, conn *pgx.Conn) (any, error) {
		go func() {
			time.Sleep(300 * time.Millisecond)
			_ = conn.PgConn().CancelRequest(ctx)
		}()
		_, err := rows(ctx, conn, long)
		after, other := rows(ctx, conn, "SELECT count(*) FROM orders")
		return []any{failure(err), after}, other
	})
	answers["database/sql"] = standard()
	answers["a pool"] = pool()
	if err := json.NewEncoder(os.Stdout).Encode(answers); err != nil {
		panic(err)
	}
}

type fileOf []byte

func (f *fileOf) Write(data []byte) (int, error) {
	*f = append(*f, data...)
	return len(data), nil
}

func standard() any {
	db, err := sql.Open("pgx", "")
	if err != nil {
		return failure(err)
	}
	defer db.Close()
	statement, err := db.Prepare("SELECT id, total, placed, shipped, note FROM orders WHERE id < $1 ORDER BY id")
	if err != nil {
		return failure(err)
	}
	found, err := statement.Query(9)
	if err != nil {
		return failure(err)
	}
	defer found.Close()
	var all []any
	for found.Next() {
		var id int64
		var total string
		var placed time.Time
		var shipped sql.NullTime
		var note sql.NullString
		if err := found.Scan(&id, &total, &placed, &shipped, &note); err != nil {
			return failure(err)
		}
		all = append(all, id, total, placed.UTC(), shipped, note)
	}
	return all
}

func pool() any {
	ctx := context.Background()
	opened, err := pgxpool.New(ctx, "")
	if err != nil {
		return failure(err)
	}
	defer opened.Close()
	counts := make(chan int, 16)
	for number := 0; number < 16; number++ {
		go func() {
			var count int
			if err := opened.QueryRow(ctx, "SELECT count(*) FROM orders WHERE id <= $1", number).Scan(&count); err != nil {
				count = -1
			}
			counts <- count - number
		}()
	}
	sum := 0
	for number := 0; number < 16; number++ {
		sum += <-counts
	}
	return sum
}
