// Each kind of process of the strategies of DistBelief and BytePS is killed in each phase of a run
// that it has. The others end with an error that names it, or go on, as docs/downpour.md,
// docs/sandblaster.md and docs/byteps.md say.
//
// A phase is a place in the code of a worker, or a message that the process has sent or got, so the
// instant is exact. Processes are forked before any thread is started.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cstdlib>
#include <set>
#include <utility>
#include <variant>
#include <vector>

#include "tests/train/launched_scene.h"
#include "tests/train/wire_point.h"
#include "troika/base/temporary_folder.h"
#include "troika/server/batch/batch_messages.h"
#include "troika/server/control.h"
#include "troika/server/request.h"
#include "troika/server/summation_wire.h"

namespace troika::train {
namespace {

using server::BatchOrder;
using server::BatchReport;
using server::Beat;
using server::Operation;
using server::Role;
using server::State;

// A place of PlaceHook, when the process comes there for the `number`-th time.
struct Place {
  std::string name;
  int number = 1;
};
using Instant = std::variant<Place, WirePoint>;

// How the workers that were not killed end.
enum class Outcome : uint8_t {
  named,         // each with an error that names the process
  named_by_one,  // others may name the rank that has failed because of it
  goes_on,       // with the results of a whole run
};

// A kind of process, and the scene in which it is one.
struct Kind {
  std::string name;
  Scene scene;
  int victim = 0;
};

struct Row {
  Kind kind;
  std::string phase;
  Instant instant;
  Outcome outcome = Outcome::named;
};

template <typename Parse, typename Test>
WirePoint message_on(Passage passage, net::Channel wanted, Parse parse, Test test, int number = 1) {
  return {passage,
          [=](net::Channel channel, const std::string& message) {
            return channel == wanted && test(parse(message));
          },
          number};
}

WirePoint beat(Passage passage, const std::function<bool(const Beat&)>& test) {
  return message_on(passage, server::kBeats, server::parse_beat, test);
}

WirePoint state(Passage passage, const std::function<bool(const State&)>& test) {
  return message_on(passage, server::kStates, server::parse_state, test);
}

// The parameters are the first table, and Sandblaster's point and gradient are among others.
WirePoint request(Passage passage, Operation operation, int number = 1) {
  return message_on(
      passage, server::kRequests, server::parse_head,
      [operation](const auto& head) { return head.operation == operation; }, number);
}

WirePoint answer(Passage passage, bool has_values, int number = 1) {
  return message_on(
      passage, server::kAnswers, server::parse_answer,
      [has_values](const auto& one) { return one.values.empty() != has_values; }, number);
}

WirePoint report(Passage passage, const std::function<bool(const BatchReport&)>& test) {
  return message_on(passage, server::kBatchReports, server::parse_report, test);
}

WirePoint order(Passage passage, const std::function<bool(const BatchOrder&)>& test) {
  return message_on(passage, server::kBatchOrders, server::parse_order, test);
}

WirePoint summation_push(Passage passage, bool is_hello, int number = 1) {
  return message_on(
      passage, server::kPushes, server::PushHead::parse,
      [is_hello](const auto& head) { return (head.key == server::kHello) == is_hello; }, number);
}

WirePoint any_on(Passage passage, net::Channel first, net::Channel last, int number = 1) {
  return {passage,
          [first, last](net::Channel channel, const std::string& /*message*/) {
            return channel >= first && channel <= last;
          },
          number};
}

constexpr auto kSent = Passage::sent, kReceived = Passage::received;

using Phases = std::vector<std::pair<std::string, Instant>>;

Phases operator+(Phases a, const Phases& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// Before a process can go on without the others.
Phases start_of_worker() {
  return {{"start", Place{"start"}},
          {"rendezvous", Place{"joined"}},
          {"join", beat(kSent, [](const Beat&) { return true; })}};
}

Phases steps_of_replica() {
  return {{"fetch", request(kSent, Operation::pull, 5)},
          {"fetched", answer(kReceived, true, 5)},
          {"compute", Place{"compute", 3}},
          {"push", request(kSent, Operation::push, 5)},
          {"pushed", answer(kReceived, false, 5)},
          {"barrier", beat(kSent, [](const Beat& one) { return one.finished >= 1; })},
          {"evaluation", Place{"evaluate", 20}},
          {"save", Place{"save"}}};
}

Phases end_of_replica() {
  return {{"end", Place{"end"}}};
}

// When a worker has all results.
Phases leave_of_worker() {
  return {{"leave", beat(kSent, [](const Beat& one) { return one.is_leaving; })}};
}

Phases rounds_of_replica() {
  return {
      {"ask", report(kSent, [](const BatchReport& one) { return one.asked >= 1; })},
      {"portion",
       order(kReceived, [](const BatchOrder& one) { return one.assignment > one.judged; })},
      {"compute", Place{"compute", 3}},
      {"result", report(kSent, [](const BatchReport& one) { return one.finished >= 2; })},
      {"judged", order(kReceived, [](const BatchOrder& one) { return one.judged >= 2; })},
      {"end of a pass",
       order(kReceived, [](const BatchOrder& one) { return one.step >= 1 && one.has_ended; })},
      {"end of a round", order(kReceived, [](const BatchOrder& one) { return one.round >= 0; })},
      {"evaluation", Place{"evaluate", 20}},
      {"save", Place{"save"}}};
}

Phases start_of_server() {
  return {{"start", Place{"start"}}, {"join", beat(kSent, [](const Beat&) { return true; })}};
}

// The first parameters arrive while ranks wait for each other.
Phases parameters_of_server(Operation gives) {
  return {{"parameters", request(kReceived, gives)}};
}

Phases steps_of_server() {
  return {{"fetch", request(kReceived, Operation::pull, 5)},
          {"fetched", answer(kSent, true, 5)},
          {"push", request(kReceived, Operation::push, 5)},
          {"pushed", answer(kSent, false, 5)},
          {"barrier", state(kReceived, [](const State& one) { return one.committed >= 1; })}};
}

Phases copies_of_server() {
  return {{"copy", any_on(kReceived, server::kCopies, server::kCopies, 5)},
          {"receipt", any_on(kSent, server::kReceipts, server::kReceipts, 5)}};
}

Phases vectors_of_server() {
  return {{"algebra", request(kReceived, Operation::compute, 5)},
          {"numbers", answer(kSent, true, 5)}};
}

Phases start_of_scheduler() {
  return {{"start", Place{"start"}},
          {"join", state(kSent, [](const State&) { return true; })},
          {"joined", beat(kReceived, [](const Beat& one) { return one.role == Role::worker; })}};
}

Phases steps_of_scheduler() {
  return {{"grant", state(kSent, [](const State& one) { return one.granted >= 1; })},
          {"barrier", beat(kReceived, [](const Beat& one) { return one.finished >= 1; })}};
}

// All workers have their results.
Phases end_of_scheduler() {
  return {{"leave", beat(kReceived, [](const Beat& one) { return one.is_leaving; })}};
}

Phases steps_of_coordinator() {
  return {
      {"gets a report", report(kReceived, [](const BatchReport& one) { return one.asked >= 0; })},
      {"gives a portion", order(kSent, [](const BatchOrder& one) { return one.assignment >= 1; })},
      {"gets a result",
       report(kReceived, [](const BatchReport& one) { return one.finished >= 1; })},
      {"ends a pass",
       order(kSent, [](const BatchOrder& one) { return one.step >= 1 && one.has_ended; })},
      {"algebra", request(kSent, Operation::compute, 5)},
      {"ends a round", order(kSent, [](const BatchOrder& one) { return one.round >= 0; })}};
}

Phases steps_of_summing_worker() {
  return {{"hello", summation_push(kSent, true)},
          {"compute", Place{"compute", 3}},
          {"push", summation_push(kSent, false, 5)},
          {"confirmation", any_on(kReceived, server::kReceived, server::kReceived, 5)},
          {"mean", any_on(kReceived, server::kMeans, server::kMeans | 0xffff'ffff, 5)},
          {"evaluation", Place{"evaluate", 5}},
          {"save", Place{"save"}},
          {"end", Place{"end"}}};
}

Phases steps_of_summation_server() {
  return {{"hello", summation_push(kReceived, true)},
          {"push", summation_push(kReceived, false, 5)},
          {"confirmation", any_on(kSent, server::kReceived, server::kReceived, 5)},
          {"mean", any_on(kSent, server::kMeans, server::kMeans | 0xffff'ffff, 5)}};
}

std::vector<Row> all_rows() {
  std::vector<Row> rows;
  const auto add = [&](const Kind& kind, const Phases& phases, Outcome outcome) {
    for (const auto& [phase, instant] : phases) rows.push_back({kind, phase, instant, outcome});
  };
  using enum Outcome;
  constexpr int kScheduler = 0, kServer = 2, kRank0 = 1 + kServers, kRank2 = kRank0 + 2;
  for (const std::string strategy : {"downpour", "sandblaster"}) {
    const bool is_downpour = strategy == "downpour";
    const Scene scene{.strategy = strategy};
    auto copied = scene, embedded = scene;
    copied.copies = 1;
    embedded.copies = 1;
    embedded.is_embedded = true;
    const auto steps = is_downpour ? steps_of_replica() : rounds_of_replica();
    const auto coordinator = is_downpour ? Phases{} : steps_of_coordinator();
    for (const int victim : {kRank0, kRank2}) {
      const Kind kind{fmt::format("replica {}", scene.index(victim)), scene, victim};
      add(kind, start_of_worker(), named);
      add(kind, steps + end_of_replica() + leave_of_worker(), goes_on);
    }
    const auto given =
        parameters_of_server(is_downpour ? Operation::assign_state : Operation::assign);
    const auto of_server = steps_of_server() + (is_downpour ? Phases{} : vectors_of_server());
    const Kind server_with_copies{"server with copies", copied, kServer};
    add(server_with_copies, start_of_server(), named_by_one);
    add(server_with_copies, given + of_server + copies_of_server(), goes_on);
    const Kind server{"server", scene, kServer};
    add(server, start_of_server() + given, named_by_one);
    add(server, of_server, named);
    const Kind scheduler{is_downpour ? "scheduler" : "coordinator", scene, kScheduler};
    add(scheduler, start_of_scheduler(), named_by_one);
    add(scheduler, steps_of_scheduler() + coordinator, named);
    add(scheduler, end_of_scheduler(), goes_on);
    const Kind rank0{"rank 0 with the scheduler", embedded, 0};
    add(rank0, steps + coordinator, named);
    add(rank0, end_of_replica() + leave_of_worker(), goes_on);
    add({"rank 2 with a server", embedded, 2}, steps + end_of_replica() + leave_of_worker(),
        goes_on);
  }
  const Scene byteps{.strategy = "byteps"};
  auto embedded = byteps;
  embedded.is_embedded = true;
  const auto steps = steps_of_summing_worker();
  for (const int victim : {kRank0, kRank2}) {
    const Kind kind{fmt::format("worker {}", byteps.index(victim)), byteps, victim};
    add(kind, start_of_worker() + steps, named);
    add(kind, leave_of_worker(), goes_on);
  }
  const Kind server{"summation server", byteps, kServer};
  add(server, start_of_server() + steps_of_summation_server(), named_by_one);
  const Kind scheduler{"scheduler", byteps, kScheduler};
  // In steps, nobody needs it.
  add(scheduler, start_of_scheduler(), named_by_one);
  add(scheduler, end_of_scheduler(), goes_on);
  for (const int victim : {0, 2}) {
    const Kind kind{fmt::format("rank {} with a server", victim), embedded, victim};
    add(kind, steps, named);
    add(kind, leave_of_worker(), goes_on);
  }
  return rows;
}

// Returns the hook of a process, which ends itself at the instant if it is the victim.
PlaceHook hook_of(const Row& row, int process) {
  if (process != row.kind.victim) return [](const auto& /*place*/) {};
  if (const auto* const point = std::get_if<WirePoint>(&row.instant)) {
    die_at(*point);
    return [](const auto& /*place*/) {};
  }
  return [place = std::get<Place>(row.instant), seen = std::make_shared<int>(0)](const auto& now) {
    if (now == place.name && ++*seen == place.number) ::raise(SIGKILL);
  };
}

// Runs the scene of the row, and expects its outcome. Returns the seconds from the kill to the end
// of all.
double expect_outcome(const Row& row) {
  const TemporaryFolder folder;
  auto scene = row.kind.scene;
  const int victim = row.kind.victim;
  scene.epochs = 3;
  scene.hook_of = [&](int process) { return hook_of(row, process); };
  const auto life = start_scene(scene, folder.path());
  const auto index = static_cast<size_t>(victim);
  EXPECT_TRUE(life->end_before(Deadline::after(Milliseconds(30'000)), index, index + 1))
      << "the process does not come to the phase";
  report_end(scene, victim, folder.path());
  const Stopwatch since_kill;
  const auto statuses = end_of(scene, *life, !scene.is_embedded && victim != 0);
  const double seconds = since_kill.seconds();
  EXPECT_TRUE(WIFSIGNALED(statuses[index]) && WTERMSIG(statuses[index]) == SIGKILL)
      << "it was not killed: " << statuses[index];
  auto errors = scheduler_error(folder.path());
  const bool has_failed = !errors.empty();
  for (int worker = 0; worker < kWorkers; ++worker) {
    const int process = scene.first_worker() + worker;
    if (process == victim) continue;
    const int status = statuses[static_cast<size_t>(process)];
    const auto output = output_of(worker, folder.path());
    if (row.outcome == Outcome::goes_on) {
      EXPECT_TRUE(has_exited(status, 0)) << "rank " << worker << ": " << status << "\n" << output;
      continue;
    }
    // A launch ends workers that wait when the scheduler has failed.
    const bool was_asked = has_failed && WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM;
    EXPECT_TRUE(was_asked || has_exited(status, 2)) << worker << ": " << status << "\n" << output;
    const auto at = output.find("error of rank");
    const auto error = at == std::string::npos ? "" : output.substr(at);
    errors += error;
    if (row.outcome == Outcome::named && !was_asked) {
      EXPECT_THAT(error, names(scene, victim)) << output;
    }
  }
  if (row.outcome != Outcome::goes_on) {
    EXPECT_THAT(errors, names(scene, victim));
  }
  return seconds;
}

// scripts/test-distbelief-kills --phases kills in all of them.
const std::set<std::string> kOfSuite{
    "downpour, replica 0, push",       "downpour, server with copies, pushed",
    "downpour, server, fetch",         "downpour, rank 0 with the scheduler, leave",
    "sandblaster, replica 2, portion", "sandblaster, coordinator, gives a portion",
    "byteps, worker 0, mean",          "byteps, summation server, push",
};

TEST(DistBeliefKills, AtEachPhase) {
  const char* const chosen = std::getenv("TROIKA_DISTBELIEF_PHASES");
  size_t kills = 0;
  double slowest = 0;  // from a kill to the end that names it
  for (const auto& row : all_rows()) {
    const auto name = fmt::format("{}, {}, {}", row.kind.scene.strategy, row.kind.name, row.phase);
    const bool is_chosen =
        chosen ? name.find(chosen) != std::string::npos : kOfSuite.contains(name);
    if (!is_chosen) continue;
    SCOPED_TRACE(name);
    const double seconds = expect_outcome(row);
    ++kills;
    const bool goes_on = row.outcome == Outcome::goes_on;
    if (!goes_on) slowest = std::max(slowest, seconds);
    fmt::print("{:<60}{:<8}{:6.1f} s\n", name, goes_on ? "goes on" : "named", seconds);
  }
  EXPECT_EQ(kills, chosen ? kills : kOfSuite.size());
  fmt::print("{{\"kills\": {}, \"slowest_seconds\": {:.1f}}}\n", kills, slowest);
}

}  // namespace
}  // namespace troika::train
