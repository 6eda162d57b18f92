require 'cgi'
require 'json'
require 'openssl'

KEY = ENV.fetch('WEBHOOK_SECRET').delete_prefix('whsec_').unpack1('m')
DONE = {}
LOCK = Mutex.new

def verified?(env, body)
  id, sent_at, signatures = %w[ID TIMESTAMP SIGNATURE].map { |name| env.fetch("HTTP_WEBHOOK_#{name}", '').b }
  return false unless sent_at.match?(/\A\d{1,10}\z/) && (Time.now.to_i - sent_at.to_i).abs <= 300

  good = 'v1,' + [OpenSSL::HMAC.digest('SHA256', KEY, "#{id}.#{sent_at}.#{body}")].pack('m0')
  signatures.split.any? { |one| OpenSSL.secure_compare(one, good) }
end

# The work. When it raises, the event comes again.
def handle(id, key, event)
  bytes = event['data_base64']&.unpack1('m')
  what = bytes ? "#{bytes.bytesize} bytes" : JSON.generate(event['data'])
  File.write('events.txt', "#{id}\t#{event['type']}\t#{key}\t#{what}\n", mode: 'a')
end

run(lambda do |env|
  body = env['rack.input'].read
  next [401, {}, []] unless verified?(env, body)

  id = env['HTTP_WEBHOOK_ID']
  LOCK.synchronize do
    handle(id, CGI.unescape(env.fetch('HTTP_OUTBOX_KEY', '')), JSON.parse(body)) unless DONE[id]
    DONE[id] = true # after the work
  end
  [204, {}, []]
end)
