// Executes messages that the nodes of a parameter server receive: the first byte of an input
// selects the kind of the message.
#include <memory>
#include <string_view>

#include "tests/fuzz/fuzz.h"
#include "troika/base/error.h"
#include "troika/server/control.h"
#include "troika/server/gathered_messages.h"
#include "troika/server/held_range.h"
#include "troika/server/membership.h"
#include "troika/server/request.h"
#include "troika/server/wire.h"

namespace troika::fuzz {

using namespace server;

namespace {

// Sends nothing.
class NoEndpoint : public net::Endpoint {
 public:
  NoEndpoint() : Endpoint("s0") {}

  net::Ticket send(const std::string&, net::Channel, const net::Pieces&, net::Priority,
                   net::Completion completion) override {
    if (completion) completion({});
    return 1;
  }
  net::Ticket receive(const std::string&, net::Channel, std::span<char>, net::Completion) override {
    return 1;
  }
  void handle(net::Channel, size_t, net::Handler) override {}
  void listen_to_peers(net::PeerListener) override {}
  void disconnect(const std::string&) override {}
  void part(const std::string&, net::Duration) override {}
  void cancel(net::Ticket, net::Outcome) override {}
  net::Duration now() const override { return net::Duration(0); }
  net::Ticket after(net::Duration, std::function<void()>) override { return 1; }
  bool run_until(const std::function<bool()>& is_over, net::Duration) override { return is_over(); }
};

constexpr uint32_t kRanges = 2;

const std::vector<Table>& tables() {
  static const std::vector<Table> all = [] {
    std::vector<Table> made;
    for (const char* text :
         {"w float64 keys=40 width=2 initial=0 spread=0 seed=0 per_step sum",
          "segments float32 keys=20 width=0 initial=0 spread=0 seed=0 per_push sgd rate=0.1",
          "rows float32 keys=0 width=2 initial=0 spread=1 seed=3 admit=2 rows=8 per_push "
          "adagrad"}) {
      const auto spec = parse_table(text);
      made.push_back({spec, make_update(spec.update, {})});
    }
    return made;
  }();
  return all;
}

std::shared_ptr<const RingMap> map_with_master(const std::string& master) {
  RingMap map;
  map.generation = 3;
  for (const auto& table : tables()) map.tables.push_back(table.spec);
  RangeHolders range;
  range.holders = {master, master == "s0" ? "s1" : "s0"};
  map.ranges.resize(kRanges, range);
  map.workers = {{1, "w0"}, {2, "w1"}};
  map.departed = {{7, 2}};
  return std::make_shared<const RingMap>(map);
}

// A range on a server, with some writes.
struct Held {
  explicit Held(const std::string& master)
      : range(endpoint, 0, kRanges, tables(), std::chrono::milliseconds(10)) {
    range.follow(map_with_master(master));
  }
  NoEndpoint endpoint;
  HeldRange range;
};

std::string request(uint32_t table, Operation operation, Coding coding, bool has_list) {
  const std::vector<Key> keys{0, 1, 5};
  const std::vector<uint32_t> lengths{1, 2, 1};
  const std::vector<double> doubles{1, 2, 3, 4, 5, 6};
  const std::vector<float> floats{1, 2, 3, 4, 5, 6};
  RequestBody body{.operation = operation, .table = table};
  if (has_list) {
    body.keys = keys;
  } else {
    body.run = {0, 3};
  }
  if (writes(operation)) {
    body.values = table == 0 ? std::span(reinterpret_cast<const char*>(doubles.data()), 48)
                             : std::span(reinterpret_cast<const char*>(floats.data()), 24);
  }
  if (table == 1 && writes(operation)) {
    body.lengths = lengths;
    body.values = body.values.first(16);
  }
  const auto parts = make_parts(body, tables()[table].spec.type, coding, 5);
  std::string message;
  write_head({.generation = 3,
              .worker = 1,
              .number = 1,
              .floor = 1,
              .step = 0,
              .committed = -1,
              .range = 0,
              .table = table,
              .operation = operation,
              .coding = coding,
              .run = body.run},
             message);
  return message + *parts.keys + *parts.rest;
}

std::string copy_entry(bool is_whole, const std::string& entry) {
  std::string message;
  Writer writer(message);
  for (const uint64_t value :
       {uint64_t{3}, uint64_t{3}, uint64_t{0}, uint64_t{0}, uint64_t{is_whole}}) {
    writer.number(value);
  }
  writer.number<int64_t>(-1);
  return message + entry;
}

void execute(Held& held, std::string_view text) {
  const auto message = std::make_shared<const std::string>(text);
  held.range.take_request("w0", parse_head(*message), message);
}

}  // namespace

std::vector<std::string> seeds() {
  std::vector<std::string> all;
  const Coding packed{.values = ValueForm::fixed2,
                      .answer_values = ValueForm::half,
                      .keys_are_packed = true,
                      .values_are_packed = true,
                      .packs_answer = true,
                      .signature = 99};
  for (uint32_t table = 0; table < 3; ++table) {
    for (const auto operation : {Operation::push, Operation::pull, Operation::push_pull}) {
      for (const bool has_list : {false, true}) {
        if (table == 2 && !has_list) continue;
        all.push_back("r" + request(table, operation, {}, has_list));
        all.push_back("r" + request(table, operation, packed, has_list));
      }
    }
  }
  Held held("s0");
  execute(held, std::string_view(all[0]).substr(1));
  all.push_back("c" + copy_entry(true, held.range.range().save()));
  all.push_back("c" + copy_entry(false, all[0].substr(1)));
  std::string answer;
  const std::vector<char> values(64, 1);
  write_answer({.worker = 1, .number = 1, .values = values}, ValueType::float32,
               {.answer_values = ValueForm::fixed1, .packs_answer = true}, 0, answer);
  all.push_back("a" + answer);
  std::string apart;
  write_answer_head({.worker = 1, .number = 1, .apart = kFirstValues + 1}, 100'000, apart);
  all.push_back("a" + apart);
  Beat beat{.role = Role::server, .instance = 1, .number = 1, .copies = {{0, "s1"}}};
  beat.saved = {{.range = 0, .file = "range", .bytes = 1, .crc = 2}};
  beat.addresses = "127.0.0.1:1";
  all.push_back("b" + to_message(beat));
  beat.role = server::Role::worker;
  beat.map = to_text(*map_with_master("s0"));
  all.push_back("b" + to_message(beat));
  beat = {.instance = 1, .number = 1};
  beat.tables = to_text(BroughtTables{.tables = {tables()[0].spec}, .ranges = 3});
  all.push_back("b" + to_message(beat));
  std::string gathered;
  Writer writer(gathered);
  writer.number(~uint64_t{0});
  writer.text(std::string_view(all[0]).substr(1));
  writer.pad();
  writer.text("odd");
  writer.pad();
  all.push_back("g" + gathered);
  all.push_back("s" + to_message(State{.generation = 3, .map = beat.map, .directory = "s0 a:1"}));
  return all;
}

void run(std::string_view input) {
  if (input.empty()) return;
  // The parsers return spans into the message, which must begin at a multiple of 8.
  const auto text = std::string(input.substr(1));
  if (input[0] == 'r') {
    Held held("s0");
    execute(held, text);
    execute(held, text);  // It arrives again.
    held.range.range().save();
  } else if (input[0] == 'c') {
    Held held("s1");
    const auto head = parse_copy_head(text);
    held.range.take_copy("s1", head, std::string_view(text).substr(kCopyHead));
    held.range.save_after(5);
  } else if (input[0] == 'a') {
    const auto answer = parse_answer(text);
    decode_answer(answer, ValueType::float32);
  } else if (input[0] == 'b') {
    Membership membership({.tables = {{.name = "w", .keys = 4}}, .ranges = kRanges});
    membership.take("s0", parse_beat(text), net::Duration(1));
    membership.take("s1", parse_beat(text), net::Duration(2));
    membership.begin_snapshot("folder");
    membership.status(net::Duration(3));
    to_message(membership.state_for("s0"));
    Membership takes({.tables = {}, .takes_tables = true});
    takes.take("s0", parse_beat(text), net::Duration(1));
    takes.status(net::Duration(2));
  } else if (input[0] == 'g') {
    size_t bytes = 0;
    for_each_message(text, [&](const std::string& one) { bytes += one.size(); });
    TROIKA_CHECK(bytes <= text.size(), "messages are parts of what was gathered");
  } else {
    parse_map(parse_state(text).map);
  }
}

}  // namespace troika::fuzz
