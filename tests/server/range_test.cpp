#include "troika/server/range.h"

#include <gmock/gmock.h>

#include "tests/support/errors.h"
#include "troika/base/random.h"
#include "troika/server/held_range.h"

namespace troika::server {
namespace {

std::vector<Table> two_tables() {
  std::vector<Table> tables;
  for (const char* text :
       {"w float64 keys=30 width=1 initial=0 spread=0 seed=0 per_step sum",
        "rows float32 keys=0 width=2 initial=0 spread=1 seed=3 per_push adagrad rate=0.1"}) {
    const auto spec = parse_table(text);
    tables.push_back({spec, make_update(spec.update, {})});
  }
  return tables;
}

struct Sent {
  Message message;
  Request request;
};

// Returns the message of a write; `values` are repeated for each key.
Sent write_of(RequestHead head, uint32_t table, std::vector<Key> keys, double value) {
  const std::vector<double> doubles(keys.size(), value);
  const std::vector<float> floats(keys.size() * 2, static_cast<float>(value));
  RequestBody body{.operation = Operation::push, .table = table, .keys = keys};
  body.values = table == 0
                    ? std::span(reinterpret_cast<const char*>(doubles.data()), doubles.size() * 8)
                    : std::span(reinterpret_cast<const char*>(floats.data()), floats.size() * 4);
  const auto message = std::make_shared<const std::string>(plain_message(head, body));
  return {message, parse_request(*message)};
}

AnswerMessage read(const Range& range, uint64_t keys) {
  return range.read({.head = {}, .body = {.operation = Operation::pull, .run = {0, keys}}}, {},
                    false);
}

std::vector<double> values_of(const AnswerMessage& message) {
  const std::string text = *message.head + std::string(message.values.bytes);
  const auto answer = parse_answer(text);
  std::vector<double> values(answer.values.size() / sizeof(double));
  std::memcpy(values.data(), answer.values.data(), answer.values.size());
  return values;
}

std::vector<double> values_of(const Range& range) {
  return values_of(read(range, 30));
}

// Executes a write of the same value to keys [first, first + count) of table 0.
void write_run(Range& range, Operation operation, KeySpan run, double value) {
  const std::vector<double> values(run.count, value);
  RequestBody body{.operation = operation, .run = run};
  body.values = {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(double)};
  const auto message = std::make_shared<const std::string>(plain_message({}, body));
  range.write(parse_request(*message), message);
}

// Requests arrive repeatedly and in any order. A dictionary of the executed requests determines
// which ones must be executed.
TEST(ServerRange, ClocksLetEachRequestThroughOnceAndInOrder) {
  const auto tables = two_tables();
  Range range(0, 1, tables);
  Random random(2);
  std::map<uint64_t, std::set<uint64_t>> done;
  for (int i = 0; i < 20'000; ++i) {
    const RequestHead head{.worker = 1 + random.below(3), .number = 1 + random.below(200)};
    const bool is_due = !done[head.worker].contains(head.number) &&
                        (head.number == 1 || done[head.worker].contains(head.number - 1));
    ASSERT_EQ(range.is_next(head), is_due);
    if (!is_due) continue;
    range.advance(head);
    done[head.worker].insert(head.number);
    ASSERT_EQ(range.clock(head.worker), head.number);
  }
  EXPECT_GT(done[1].size(), 20u);
}

// A server that replaces another one may not know answered requests that had no effect.
TEST(ServerRange, ClocksSkipWhatTheWorkerHasAnswersTo) {
  const auto tables = two_tables();
  Range range(0, 1, tables);
  range.advance({.worker = 1, .number = 4});
  EXPECT_FALSE(range.is_next({.worker = 1, .number = 7, .floor = 6}));
  EXPECT_TRUE(range.is_next({.worker = 1, .number = 7, .floor = 7}));
  EXPECT_FALSE(range.is_next({.worker = 1, .number = 4, .floor = 4}));
}

TEST(ServerRange, StepsAreSummedInTheOrderOfWorkersAndDepartedOnesLeftOut) {
  const auto tables = two_tables();
  Range range(0, 1, tables);
  const auto write = [&](uint64_t worker, int64_t step, std::vector<Key> keys, double value) {
    const auto sent = write_of({.worker = worker, .step = step}, 0, std::move(keys), value);
    ASSERT_EQ(range.refusal(sent.request.body), "");
    range.write(sent.request, sent.message);
  };
  write(3, 0, {0, 1}, 1e16);
  write(1, 0, {0, 5}, 1);
  write(2, 0, {0, 1, 2, 3, 4, 5}, -1e16);
  write(4, 0, {0, 1}, 100);
  write(1, 1, {0}, 7);
  EXPECT_THAT(values_of(range), testing::Each(0)) << "before the step is committed";
  range.commit(0, {{4, -1}});
  const auto values = values_of(range);
  EXPECT_EQ(values[0], 0) << "(1 - 1e16) + 1e16: in the order of workers";
  EXPECT_EQ(values[1], 0);
  EXPECT_EQ(values[3], -1e16);
  EXPECT_EQ(values[5], 1 - 1e16);
  range.commit(1, {{1, 1}});
  EXPECT_EQ(values_of(range)[0], 7) << "a worker that left has finished this step";
}

// An answer refers to stored values, and may be sent long after the next writes.
TEST(ServerRange, AnswersKeepTheirValuesUnderLaterWrites) {
  constexpr uint64_t kKeys = 20'000;
  for (const char* rule : {"sum", "momentum rate=1 momentum=0"}) {
    SCOPED_TRACE(rule);
    const auto spec = parse_table(
        "w float64 keys=20000 width=1 initial=0 spread=0 seed=0 per_push " + std::string(rule));
    const std::vector<Table> tables{{spec, make_update(spec.update, {})}};
    Range range(0, 1, tables);
    const double sign = std::string_view(rule) == "sum" ? 1 : -1;
    std::vector<double> expected(kKeys);
    std::vector<std::pair<AnswerMessage, std::vector<double>>> answers;
    const auto note = [&] {
      answers.emplace_back(read(range, kKeys), expected);
      EXPECT_LT(answers.back().first.head->size(), 100u) << "the values were copied";
    };
    note();
    for (const KeySpan run : {KeySpan{0, kKeys}, {5000, 9000}, {0, 1}, {kKeys - 1, 1}}) {
      write_run(range, Operation::push, run, 2);
      for (Key key = run.first; key < run.first + run.count; ++key) expected[key] += 2 * sign;
      note();
    }
    write_run(range, Operation::assign, {7, 3}, 9);
    std::fill_n(expected.begin() + 7, 3, 9);
    note();
    for (const auto& [answer, values] : answers) EXPECT_EQ(values_of(answer), values);
    answers.clear();
    write_run(range, Operation::push, {0, kKeys}, -1);
    for (double& value : expected) value -= sign;
    EXPECT_EQ(values_of(read(range, kKeys)), expected);
  }
}

TEST(ServerRange, CopiesAreWhole) {
  const auto tables = two_tables();
  Range range(0, 1, tables), copy(0, 1, tables);
  const auto write = [](Range& to, const Sent& sent) {
    to.write(sent.request, sent.message);
    to.advance(sent.request.head);
  };
  write(range, write_of({.worker = 1, .number = 1, .step = 0}, 0, {3}, 2));
  write(range, write_of({.worker = 1, .number = 2, .step = 0}, 1, {3, 1ull << 60}, 2));
  copy.load(range.save());
  EXPECT_EQ(copy.clock(1), 2u);
  for (auto* each : {&range, &copy}) {
    write(*each, write_of({.worker = 1, .number = 3, .step = 1}, 1, {3, 4}, 1));
    each->commit(0, {});
  }
  EXPECT_EQ(values_of(copy)[3], 2) << "the push waited for its step";
  EXPECT_EQ(copy.save().size(), range.save().size());
  EXPECT_EQ(copy.keys(), 33u);
  Range other(0, 2, tables);
  EXPECT_ERROR(other.load(range.save()), ErrorKind::failure,
               "[server] a copy is not of range 0; got 1 ranges, expected 2 ranges");
  EXPECT_THROW(copy.load(range.save().substr(0, 200)), Error);
}

TEST(ServerRange, WrongRequestsAreRefused) {
  const auto tables = two_tables();
  const Range range(1, 3, tables);
  const auto refusal = [&](RequestBody body) { return range.refusal(body); };
  EXPECT_EQ(refusal({.table = 2}), "there is no table 2");
  EXPECT_EQ(refusal({.operation = Operation::pull, .run = {9, 2}}),
            "key 9 of table w does not belong to range 1");
  EXPECT_EQ(refusal({.operation = Operation::pull, .run = {19, ~uint64_t{0}}}),
            "key 19 of table w does not belong to range 1");
  EXPECT_EQ(refusal({.operation = Operation::pull, .table = 1, .run = {0, 1}}),
            "table rows is sparse and takes lists of keys");
  const std::vector<Key> keys{12, 11};
  EXPECT_EQ(refusal({.operation = Operation::pull, .keys = keys}), "the keys are not ascending");
  EXPECT_EQ(refusal({.operation = Operation::push, .run = {10, 2}}),
            "wrong number of values for 2 keys of table w; got 0 bytes, expected 16");
}

// Keeps the completions of sends.
class SlowEndpoint : public net::Endpoint {
 public:
  SlowEndpoint() : Endpoint("s0") {}

  net::Ticket send(const std::string&, net::Channel, const net::Pieces&, net::Priority,
                   net::Completion completion) override {
    sending.push_back(std::move(completion));
    return sending.size();
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

  std::vector<net::Completion> sending;
};

// A worker repeats its requests while a large answer is on its way.
TEST(ServerRange, RepeatedRequestsDoNotMultiplyAnswers) {
  const auto tables = two_tables();
  SlowEndpoint endpoint;
  HeldRange range(endpoint, 0, 1, tables, std::chrono::milliseconds(10));
  RingMap map;
  map.generation = 3;
  map.workers = {{1, "w0"}};
  map.ranges.push_back({.holders = {"s0"}, .joiners = {}});
  range.follow(std::make_shared<const RingMap>(map));
  const RequestHead head{.generation = 3, .worker = 1, .number = 1, .floor = 1};
  for (const auto operation : {Operation::pull, Operation::push_pull}) {
    auto next = head;
    next.number = next.floor = operation == Operation::pull ? 1 : 2;
    const std::vector<double> ones(30, 1);
    RequestBody body{.operation = operation, .run = {0, 30}};
    if (writes(operation)) body.values = {reinterpret_cast<const char*>(ones.data()), 240};
    const auto message = std::make_shared<const std::string>(plain_message(next, body));
    const auto take = [&] { range.take_request("w0", parse_head(*message), message); };
    for (int i = 0; i < 5; ++i) take();
    ASSERT_EQ(endpoint.sending.size(), 1u);
    endpoint.sending[0]({});
    take();
    EXPECT_EQ(endpoint.sending.size(), 2u) << "the answer may be lost";
    endpoint.sending[1]({});
    endpoint.sending.clear();
  }
}

// Random bytes and cut messages end with an error, nothing else.
TEST(ServerRange, MalformedMessagesAreErrors) {
  Random random(8);
  const auto sent = write_of({.worker = 1, .number = 1}, 1, {3, 4}, 2);
  for (size_t size = 0; size < sent.message->size(); ++size) {
    EXPECT_THROW(parse_request(std::string_view(*sent.message).substr(0, size)), Error);
  }
  for (const int64_t step : {INT64_MAX, INT64_MIN, int64_t{-2}}) {
    EXPECT_THROW(write_of({.step = step}, 1, {3}, 2), Error);
    EXPECT_THROW(write_of({.committed = step}, 1, {3}, 2), Error);
  }
  const auto tables = two_tables();
  const Range range(0, 1, tables);
  for (int i = 0; i < 20'000; ++i) {
    std::string text = *sent.message;
    for (int k = 0; k < 3; ++k) text[random.below(text.size())] = static_cast<char>(random());
    try {
      range.refusal(parse_request(text).body);
    } catch (const Error&) {
    }
  }
}

}  // namespace
}  // namespace troika::server
