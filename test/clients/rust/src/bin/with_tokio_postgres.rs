// A shop with tokio-postgres, see doc/orm.md.

use futures_util::SinkExt;
use serde_json::{json, Value};
use std::io::Cursor;
use tokio_postgres::{Error, NoTls};
use uuid::Uuid;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let url = std::env::var("DATABASE_URL").unwrap();
    let (mut client, connection) = tokio_postgres::connect(&url, NoTls).await?;
    tokio::spawn(connection);

    // By function
    let tx = client.transaction().await?;
    let order: i64 = tx.query_one("INSERT INTO orders (customer) VALUES ($1) RETURNING id", &[&"ada"]).await?.get(0);
    let row = tx
        .query_one("SELECT outbox.emit('order.created', $1::jsonb, key => $2::bigint)", &[&json!({"order": order}), &order])
        .await?;
    tx.commit().await?;
    println!("created {}", row.get::<_, Uuid>(0));

    // By INSERT
    let tx = client.transaction().await?;
    let insert = "INSERT INTO outbox.outgoing (topic, key, payload, headers) VALUES ($1, $2, $3, $4) RETURNING id";
    let row = tx
        .query_one(insert, &[&"order.paid", &order.to_string(), &json!({"order": order}), &json!({"x-tenant": "acme"})])
        .await?;
    let id: Uuid = row.get(0);
    let again = tx
        .query_one("SELECT topic, headers, (SELECT count(*) FROM outbox.outgoing) FROM outbox.outgoing WHERE id = $1", &[&id])
        .await?;
    let headers: Value = again.get(1);
    println!("paid {id} {} {} {}", again.get::<_, &str>(0), headers["x-tenant"].as_str().unwrap(), again.get::<_, i64>(2));
    let row = tx
        .query_one(
            "INSERT INTO outbox.outgoing (topic, body, content_type) VALUES ($1, $2, $3) RETURNING id",
            &[&"label.printed", &&b"%PDF-"[..], &"application/pdf"],
        )
        .await?;
    println!("label {}", row.get::<_, Uuid>(0));
    tx.commit().await?;

    // Many at once
    let tx = client.transaction().await?;
    let payloads: Vec<Value> = (1..=3).map(|n| json!({"order": n})).collect();
    let rows = tx
        .query(
            "INSERT INTO outbox.outgoing (topic, key, payload) SELECT 'order.packed', 'k', unnest($1::jsonb[]) RETURNING id",
            &[&payloads],
        )
        .await?;
    tx.commit().await?;
    println!("packed {}", rows.iter().map(|row| row.get::<_, Uuid>(0).to_string()).collect::<Vec<_>>().join(" "));

    // COPY
    let tx = client.transaction().await?;
    let mut sink = Box::pin(tx.copy_in("COPY outbox.events (topic, key, payload) FROM STDIN").await?);
    for n in 1..=3 {
        sink.send(Cursor::new(format!("order.counted\tk\t{}\n", json!({"order": n})))).await?;
    }
    sink.as_mut().finish().await?;
    tx.commit().await?;

    // A savepoint
    let emit = "SELECT outbox.emit($1, $2)";
    let payload = json!({"order": order}).to_string();
    let mut tx = client.transaction().await?;
    tx.query_one(emit, &[&"order.shipped", &payload]).await?;
    let savepoint = tx.savepoint("a").await?;
    savepoint.query_one(emit, &[&"order.lost", &payload]).await?;
    savepoint.rollback().await?;
    tx.commit().await?;

    // A rollback
    let tx = client.transaction().await?;
    tx.execute("INSERT INTO orders (customer) VALUES ('bob')", &[]).await?;
    tx.query_one(emit, &[&"order.cancelled", &payload]).await?;
    tx.rollback().await
}
