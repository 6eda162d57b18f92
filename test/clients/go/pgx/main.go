// A shop with pgx, see doc/orm.md.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/debug"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

var errTakenBack = errors.New("taken back")

func check(err error) {
	if err != nil && !errors.Is(err, errTakenBack) {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func main() {
	info, _ := debug.ReadBuildInfo()
	for _, module := range info.Deps {
		if module.Path == "github.com/jackc/pgx/v5" {
			fmt.Println("version", module.Version)
		}
	}
	ctx := context.Background()
	config, err := pgx.ParseConfig(os.Getenv("DATABASE_URL"))
	check(err)
	if os.Getenv("PGBOUNCER") != "" {
		config.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
	}
	conn, err := pgx.ConnectConfig(ctx, config)
	check(err)
	defer conn.Close(ctx)
	var order int64

	// By function
	check(pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		err := tx.QueryRow(ctx, "INSERT INTO orders (customer) VALUES ($1) RETURNING id", "ada").Scan(&order)
		if err != nil {
			return err
		}
		var id uuid.UUID
		err = tx.QueryRow(ctx, "SELECT outbox.emit('order.created', $1::jsonb, key => $2::bigint)",
			map[string]any{"order": order}, order).Scan(&id)
		fmt.Println("created", id)
		return err
	}))

	// By INSERT
	check(pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		var id, label uuid.UUID
		err := tx.QueryRow(ctx, "INSERT INTO outbox.outgoing (topic, key, payload, headers) VALUES ($1, $2, $3, $4) RETURNING id",
			"order.paid", fmt.Sprint(order), map[string]any{"order": order}, map[string]string{"x-tenant": "acme"}).Scan(&id)
		if err != nil {
			return err
		}
		var topic string
		var headers map[string]string
		var count int
		err = tx.QueryRow(ctx, "SELECT topic, headers, (SELECT count(*) FROM outbox.outgoing) FROM outbox.outgoing WHERE id = $1", id).
			Scan(&topic, &headers, &count)
		if err != nil {
			return err
		}
		fmt.Println("paid", id, topic, headers["x-tenant"], count)
		err = tx.QueryRow(ctx, "INSERT INTO outbox.outgoing (topic, body, content_type) VALUES ($1, $2, $3) RETURNING id",
			"label.printed", []byte("%PDF-"), "application/pdf").Scan(&label)
		fmt.Println("label", label)
		return err
	}))

	// Many at once
	check(pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		batch := &pgx.Batch{}
		fmt.Print("packed")
		for n := 1; n <= 3; n++ {
			batch.Queue("INSERT INTO outbox.outgoing (topic, key, payload) VALUES ($1, $2, $3) RETURNING id",
				"order.packed", "k", map[string]any{"order": n}).QueryRow(func(row pgx.Row) error {
				var id uuid.UUID
				err := row.Scan(&id)
				fmt.Print(" ", id)
				return err
			})
		}
		err := tx.SendBatch(ctx, batch).Close()
		fmt.Println()
		return err
	}))

	// COPY
	check(pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		rows := [][]any{}
		for n := 1; n <= 3; n++ {
			rows = append(rows, []any{"order.counted", "k", map[string]any{"order": n}})
		}
		_, err := tx.CopyFrom(ctx, pgx.Identifier{"outbox", "events"}, []string{"topic", "key", "payload"}, pgx.CopyFromRows(rows))
		return err
	}))

	// A savepoint
	emit := "SELECT outbox.emit($1, $2)"
	payload := fmt.Sprintf(`{"order": %d}`, order)
	check(pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, emit, "order.shipped", payload); err != nil {
			return err
		}
		err := pgx.BeginFunc(ctx, tx, func(savepoint pgx.Tx) error {
			if _, err := savepoint.Exec(ctx, emit, "order.lost", payload); err != nil {
				return err
			}
			return errTakenBack
		})
		if errors.Is(err, errTakenBack) {
			return nil
		}
		return err
	}))

	// A rollback
	check(pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "INSERT INTO orders (customer) VALUES ('bob')"); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, emit, "order.cancelled", payload); err != nil {
			return err
		}
		return errTakenBack
	}))
}
