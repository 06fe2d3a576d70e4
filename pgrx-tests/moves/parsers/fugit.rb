# Asks fugit when expressions match. See cron_parsers.py for the argument and the answers.

require "json"
require "fugit"

JSON.parse(ARGV[0]).each do |_tool, text, zone, start, count|
  begin
    at = Fugit.parse_cron("#{text} #{zone}") or raise "no cron"
    from = EtOrbi.parse(start)
    times = count.times.map { from = at.next_time(from) }
    puts JSON.generate(times.map { |time| time.utc.strftime("%Y-%m-%dT%H:%M:%SZ") })
  rescue => error
    puts JSON.generate("refused: #{error.message}")
  end
end
