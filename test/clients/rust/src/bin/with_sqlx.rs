// A shop with sqlx, see doc/orm.md.

use serde_json::{json, Value};
use sqlx::types::Json;
use sqlx::{Connection, PgConnection};
use uuid::Uuid;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), sqlx::Error> {
    let mut db = PgConnection::connect(&std::env::var("DATABASE_URL").unwrap()).await?;

    // By function
    let mut tx = db.begin().await?;
    let order: i64 =
        sqlx::query_scalar("INSERT INTO orders (customer) VALUES ($1) RETURNING id").bind("ada").fetch_one(&mut *tx).await?;
    let id: Uuid = sqlx::query_scalar("SELECT outbox.emit('order.created', $1, key => $2)")
        .bind(Json(json!({"order": order})))
        .bind(order)
        .fetch_one(&mut *tx)
        .await?;
    tx.commit().await?;
    println!("created {id}");

    // By INSERT
    let mut tx = db.begin().await?;
    let id: Uuid =
        sqlx::query_scalar("INSERT INTO outbox.outgoing (topic, key, payload, headers) VALUES ($1, $2, $3, $4) RETURNING id")
            .bind("order.paid")
            .bind(order.to_string())
            .bind(Json(json!({"order": order})))
            .bind(Json(json!({"x-tenant": "acme"})))
            .fetch_one(&mut *tx)
            .await?;
    let (topic, headers): (String, Json<Value>) =
        sqlx::query_as("SELECT topic, headers FROM outbox.outgoing WHERE id = $1").bind(id).fetch_one(&mut *tx).await?;
    let count: i64 = sqlx::query_scalar("SELECT count(*) FROM outbox.outgoing").fetch_one(&mut *tx).await?;
    println!("paid {id} {topic} {} {count}", headers["x-tenant"].as_str().unwrap());
    let label: Uuid =
        sqlx::query_scalar("INSERT INTO outbox.outgoing (topic, body, content_type) VALUES ($1, $2, $3) RETURNING id")
            .bind("label.printed")
            .bind(&b"%PDF-"[..])
            .bind("application/pdf")
            .fetch_one(&mut *tx)
            .await?;
    println!("label {label}");
    tx.commit().await?;

    // Many at once
    let mut tx = db.begin().await?;
    let ids: Vec<Uuid> = sqlx::query_scalar(
        "INSERT INTO outbox.outgoing (topic, key, payload) SELECT 'order.packed', 'k', unnest($1::jsonb[]) RETURNING id",
    )
    .bind((1..=3).map(|n| Json(json!({"order": n}))).collect::<Vec<_>>())
    .fetch_all(&mut *tx)
    .await?;
    tx.commit().await?;
    println!("packed {} {} {}", ids[0], ids[1], ids[2]);

    // COPY
    let mut tx = db.begin().await?;
    let mut copy = tx.copy_in_raw("COPY outbox.events (topic, key, payload) FROM STDIN").await?;
    for n in 1..=3 {
        copy.send(format!("order.counted\tk\t{}\n", json!({"order": n})).as_bytes()).await?;
    }
    copy.finish().await?;
    tx.commit().await?;

    // A savepoint
    let emit = "SELECT outbox.emit($1, $2)";
    let mut tx = db.begin().await?;
    sqlx::query(emit).bind("order.shipped").bind(Json(json!({"order": order}))).execute(&mut *tx).await?;
    let mut savepoint = tx.begin().await?;
    sqlx::query(emit).bind("order.lost").bind(Json(json!({"order": order}))).execute(&mut *savepoint).await?;
    savepoint.rollback().await?;
    tx.commit().await?;

    // A rollback
    let mut tx = db.begin().await?;
    sqlx::query("INSERT INTO orders (customer) VALUES ('bob')").execute(&mut *tx).await?;
    sqlx::query(emit).bind("order.cancelled").bind(Json(json!({}))).execute(&mut *tx).await?;
    tx.rollback().await
}
