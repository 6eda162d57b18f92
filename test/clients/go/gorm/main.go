// A shop with GORM, see doc/orm.md.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"time"

	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"
)

type Order struct {
	ID       int64 `gorm:"primaryKey"`
	Customer string
}

type OutgoingEvent struct {
	ID          string `gorm:"type:uuid;primaryKey;default:outbox.new_event_id()"`
	Topic       string
	Type        *string
	Key         *string
	ExpiresAt   *time.Time
	Headers     map[string]string `gorm:"serializer:json"`
	Payload     json.RawMessage   `gorm:"type:jsonb"`
	Body        []byte
	ContentType *string
}

func (OutgoingEvent) TableName() string { return "outbox.outgoing" }

var errTakenBack = errors.New("taken back")

func check(err error) {
	if err != nil && !errors.Is(err, errTakenBack) {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func about(order any) json.RawMessage {
	payload, err := json.Marshal(map[string]any{"order": order})
	check(err)
	return payload
}

func main() {
	info, _ := debug.ReadBuildInfo()
	for _, module := range info.Deps {
		if module.Path == "gorm.io/gorm" {
			fmt.Println("version", module.Version)
		}
	}
	db, err := gorm.Open(postgres.New(postgres.Config{
		DSN:                  os.Getenv("DATABASE_URL"),
		PreferSimpleProtocol: os.Getenv("PGBOUNCER") != "",
	}), &gorm.Config{Logger: logger.Discard})
	check(err)
	order := Order{Customer: "ada"}

	// By function
	check(db.Transaction(func(tx *gorm.DB) error {
		if err := tx.Create(&order).Error; err != nil {
			return err
		}
		var id string
		err := tx.Raw("SELECT outbox.emit('order.created', ?::jsonb, key => ?::bigint)", string(about(order.ID)), order.ID).
			Scan(&id).Error
		fmt.Println("created", id)
		return err
	}))

	// Mapped
	check(db.Transaction(func(tx *gorm.DB) error {
		key := fmt.Sprint(order.ID)
		event := OutgoingEvent{Topic: "order.paid", Key: &key, Payload: about(order.ID), Headers: map[string]string{"x-tenant": "acme"}}
		if err := tx.Create(&event).Error; err != nil {
			return err
		}
		again := OutgoingEvent{ID: event.ID}
		if err := tx.First(&again).Error; err != nil {
			return err
		}
		var count int64
		if err := tx.Model(&OutgoingEvent{}).Count(&count).Error; err != nil {
			return err
		}
		fmt.Println("paid", event.ID, again.Topic, again.Headers["x-tenant"], count)
		pdf := "application/pdf"
		label := OutgoingEvent{Topic: "label.printed", Body: []byte("%PDF-"), ContentType: &pdf}
		err := tx.Create(&label).Error
		fmt.Println("label", label.ID)
		return err
	}))

	// Many at once
	check(db.Transaction(func(tx *gorm.DB) error {
		key := "k"
		events := []OutgoingEvent{}
		for n := 1; n <= 3; n++ {
			events = append(events, OutgoingEvent{Topic: "order.packed", Key: &key, Payload: about(n)})
		}
		err := tx.Create(&events).Error
		fmt.Println("packed", events[0].ID, events[1].ID, events[2].ID)
		return err
	}))

	// A savepoint
	check(db.Transaction(func(tx *gorm.DB) error {
		if err := tx.Create(&OutgoingEvent{Topic: "order.shipped", Payload: about(order.ID)}).Error; err != nil {
			return err
		}
		err := tx.Transaction(func(savepoint *gorm.DB) error {
			if err := savepoint.Create(&OutgoingEvent{Topic: "order.lost", Payload: about(order.ID)}).Error; err != nil {
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
	check(db.Transaction(func(tx *gorm.DB) error {
		if err := tx.Create(&Order{Customer: "bob"}).Error; err != nil {
			return err
		}
		if err := tx.Create(&OutgoingEvent{Topic: "order.cancelled", Payload: about(0)}).Error; err != nil {
			return err
		}
		return errTakenBack
	}))
}
