# A shop with Active Record, see doc/orm.md.

require "active_record"
require "json"
require "stringio"
require "tempfile"

config = { adapter: "postgresql", url: ENV["DATABASE_URL"] }
config[:prepared_statements] = false if ENV["PGBOUNCER"]
ActiveRecord::Base.establish_connection(config)
puts "version #{ActiveRecord.version}"

class Order < ActiveRecord::Base
end

class OutgoingEvent < ActiveRecord::Base
  self.table_name = "outbox.outgoing"
  self.primary_key = "id"
  self.inheritance_column = nil
end

# By function
order = OutgoingEvent.transaction do
  order = Order.create!(customer: "ada")
  sql = "SELECT outbox.emit('order.created', ?, key => ?)"
  query = OutgoingEvent.sanitize_sql([sql, { order: order.id }.to_json, order.id])
  puts "created #{OutgoingEvent.connection.select_value(query)}"
  order
end

# Mapped
OutgoingEvent.transaction do
  event = OutgoingEvent.create!(
    topic: "order.paid", key: order.id, payload: { order: order.id }, headers: { "x-tenant" => "acme" }
  )
  event.reload
  puts "paid #{event.id} #{event.topic} #{event.headers["x-tenant"]} #{OutgoingEvent.count}"
  label = OutgoingEvent.create!(topic: "label.printed", body: "%PDF-", content_type: "application/pdf")
  puts "label #{label.id}"
end

# Many at once
OutgoingEvent.transaction do
  events = OutgoingEvent.create!((1..3).map { |n| { topic: "order.packed", key: "k", payload: { order: n } } })
  puts "packed #{events.map(&:id).join(" ")}"
end

# COPY
OutgoingEvent.transaction do
  raw = OutgoingEvent.connection.raw_connection
  raw.copy_data("COPY outbox.events (topic, key, payload) FROM STDIN") do
    (1..3).each { |n| raw.put_copy_data("order.counted\tk\t#{{ order: n }.to_json}\n") }
  end
end

# A savepoint
OutgoingEvent.transaction do
  OutgoingEvent.create!(topic: "order.shipped", payload: { order: order.id })
  OutgoingEvent.transaction(requires_new: true) do
    OutgoingEvent.create!(topic: "order.lost", payload: { order: order.id })
    raise ActiveRecord::Rollback
  end
end

# A rollback
OutgoingEvent.transaction do
  Order.create!(customer: "bob")
  OutgoingEvent.create!(topic: "order.cancelled", payload: {})
  raise ActiveRecord::Rollback
end

# What makes files from tables
unless ENV["PGBOUNCER"]
  schema = StringIO.new
  ActiveRecord::SchemaDumper.dump(ActiveRecord::Base.connection, schema)
  puts "schema #{schema.string.include?('create_table "orders"')} #{schema.string.include?("outgoing")}"

  ActiveRecord::Base.dump_schemas = "public"
  Tempfile.create do |structure|
    database = ActiveRecord::Base.connection_db_config
    ActiveRecord::Tasks::DatabaseTasks.structure_dump(database, structure.path)
    text = structure.read
    puts "structure #{text.include?("CREATE TABLE public.orders")} #{text.include?("outbox")}"
  end
end
