package main

import (
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/url"
	"os"
	"sync"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

type Event struct {
	Type  string
	Data  json.RawMessage
	Bytes []byte `json:"data_base64"`
}

var (
	webhook, _ = standardwebhooks.NewWebhook(os.Getenv("WEBHOOK_SECRET"))
	mutex      sync.Mutex
	done       = map[string]bool{}
)

// The work. When it fails, the event comes again.
func handle(id, key string, event Event) error {
	what := string(event.Data)
	if event.Data == nil {
		what = fmt.Sprintf("%d bytes", len(event.Bytes))
	}
	file, err := os.OpenFile("events.txt", os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = fmt.Fprintf(file, "%s\t%s\t%s\t%s\n", id, event.Type, key, what)
	return err
}

func receive(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 2<<20))
	if err != nil || webhook.Verify(body, r.Header) != nil {
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	var event Event
	if json.Unmarshal(body, &event) != nil {
		w.Header().Set("webhook-delivery", "abort-message") // it will never be JSON
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	id := r.Header.Get("webhook-id")
	key, _ := url.PathUnescape(r.Header.Get("outbox-key"))
	mutex.Lock()
	defer mutex.Unlock()
	if !done[id] {
		if err := handle(id, key, event); err != nil {
			log.Print(err)
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		done[id] = true // after the work
	}
	w.WriteHeader(http.StatusNoContent)
}

func main() {
	http.HandleFunc("/", receive)
	panic(http.ListenAndServe("127.0.0.1:"+os.Getenv("PORT"), nil))
}
