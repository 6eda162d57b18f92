use std::collections::HashSet;
use std::error::Error;
use std::io::{Read, Write};

use base64::{engine::general_purpose::STANDARD, Engine};
use http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::Value;
use standardwebhooks::Webhook;
use tiny_http::{Request, Response, Server};

// The work. When it fails, the event comes again.
fn handle(id: &str, key: &str, event: &Value) -> Result<(), Box<dyn Error>> {
    let what = match &event["data_base64"] {
        Value::String(text) => format!("{} bytes", STANDARD.decode(text)?.len()),
        _ => event["data"].to_string(),
    };
    let kind = event["type"].as_str().unwrap_or("");
    let mut file = std::fs::OpenOptions::new().append(true).create(true).open("events.txt")?;
    writeln!(file, "{id}\t{kind}\t{key}\t{what}")?;
    Ok(())
}

fn receive(webhook: &Webhook, done: &mut HashSet<String>, request: &mut Request) -> Result<u16, Box<dyn Error>> {
    let mut headers = HeaderMap::new();
    for header in request.headers() {
        let name = HeaderName::from_bytes(header.field.as_str().as_bytes())?;
        headers.insert(name, HeaderValue::from_str(header.value.as_str())?);
    }
    let mut body = Vec::new();
    request.as_reader().take(2 << 20).read_to_end(&mut body)?;
    if webhook.verify(&body, &headers).is_err() {
        return Ok(401);
    }
    let text = |name: &'static str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or("");
    let id = text("webhook-id");
    let key = percent_encoding::percent_decode_str(text("outbox-key")).decode_utf8()?;
    if !done.contains(id) {
        handle(id, &key, &serde_json::from_slice(&body)?)?;
        done.insert(id.to_string()); // after the work
    }
    Ok(204)
}

fn main() {
    let port = std::env::var("PORT").unwrap().parse().unwrap();
    let webhook = Webhook::new(&std::env::var("WEBHOOK_SECRET").unwrap()).unwrap();
    let server = Server::http(("127.0.0.1", port)).unwrap();
    let mut done = HashSet::new();
    for mut request in server.incoming_requests() {
        let status = receive(&webhook, &mut done, &mut request).unwrap_or_else(|error| {
            eprintln!("{error}");
            500
        });
        let _ = request.respond(Response::empty(status));
    }
}
