#include "troika/swarm/state_transfer.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "troika/base/log.h"
#include "troika/swarm/identity.h"
#include "troika/swarm/json_text.h"

namespace troika::swarm {

namespace {

constexpr size_t kStateChunk = size_t{256} << 10;
constexpr size_t kMostStateMessage = kStateChunk + 4096;
constexpr size_t kRequestsInFlight = 4;
constexpr net::Duration kSnapshotLife = std::chrono::minutes(1);
constexpr size_t kMostSnapshots = 2;
constexpr net::Duration kRetry = std::chrono::milliseconds(200);
constexpr net::Duration kShortly = std::chrono::seconds(1);
constexpr net::Duration kLong = std::chrono::seconds(30);

struct StateQuestion {
  std::string digest;  // of the state that was begun; empty: of any
  uint64_t offset = 0;
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(StateQuestion, digest, offset)

}  // namespace

// Stands before the bytes of an answer, in a line of its own.
struct StateHead {
  int64_t epoch = 0;
  std::string history;
  bool is_partial = false;
  std::string digest;  // empty: there is no state now
  uint64_t total = 0, offset = 0;
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(StateHead, epoch, history, is_partial, digest, total, offset)

namespace {

bool are_of_one_state(const StateHead& a, const StateHead& b) {
  return std::tie(a.epoch, a.history, a.is_partial, a.digest, a.total) ==
         std::tie(b.epoch, b.history, b.is_partial, b.digest, b.total);
}

}  // namespace

struct StateTransfer::Download {
  int64_t least_epoch = 0;
  Donors donors;
  Done done;
  Known known;
  std::string donor = {};
  uint64_t attempt = 0;  // at a donor; answers to earlier ones are ignored
  size_t in_flight = 0;
  uint64_t asked = 0;  // bytes, from the beginning of the state
  std::map<std::string, net::Duration> avoided = {};
  std::optional<StateHead> head = {};          // of the state that was begun
  std::string bytes = {};                      // its beginning
  std::map<uint64_t, std::string> early = {};  // chunks after a missing one
};

StateTransfer::StateTransfer(net::Endpoint& endpoint, Take take, uint64_t most_bytes)
    : endpoint_(endpoint),
      requests_(endpoint, kStates, kMostStateMessage),
      take_(std::move(take)),
      most_bytes_(most_bytes),
      answers_(std::chrono::seconds(1), std::chrono::seconds(10)) {
  requests_.answer_with(
      [this](const std::string& peer, const std::string& question, const net::Answer& reply) {
        try {
          reply(answer(question));
        } catch (const Error& problem) {
          log::warn("[swarm] a request of {} for a state is ignored: {}", peer, problem.what());
        }
      });
}

void StateTransfer::set_version(const StateVersion& version) {
  version_ = version;
}

void StateTransfer::sweep() {
  std::erase_if(snapshots_, [now = endpoint_.now()](const Snapshot& snapshot) {
    return now - snapshot.used >= kSnapshotLife;
  });
  if (!snapshots_.empty()) endpoint_.after(kSnapshotLife / 4, alive_.guard([this] { sweep(); }));
}

StateTransfer::Snapshot* StateTransfer::current() {
  const auto found = std::ranges::find(snapshots_, version_, &Snapshot::version);
  if (found != snapshots_.end()) return &*found;
  if (snapshots_.size() >= kMostSnapshots) {
    const auto given = std::ranges::find(snapshots_, true, &Snapshot::is_given);
    if (given == snapshots_.end()) return nullptr;
    snapshots_.erase(given);
  }
  auto bytes = take_ ? take_() : nullptr;
  if (!bytes) return nullptr;
  const auto digest = digest_of(*bytes);
  // The sweep runs as long as there are snapshots.
  if (snapshots_.empty()) {
    endpoint_.after(kSnapshotLife / 4, alive_.guard([this] { sweep(); }));
  }
  snapshots_.push_back({version_, std::move(bytes), digest, endpoint_.now()});
  return &snapshots_.back();
}

std::string StateTransfer::answer(const std::string& text) {
  const auto question = parsed<StateQuestion>(text);
  const auto begun = std::ranges::find(snapshots_, question.digest, &Snapshot::digest);
  Snapshot* snapshot = begun != snapshots_.end() ? &*begun : current();
  if (!snapshot) return text_of(StateHead{}) + '\n';
  const bool continues = snapshot->digest == question.digest;
  const auto offset = continues ? std::min(question.offset, snapshot->bytes->size()) : 0;
  snapshot->used = endpoint_.now();
  snapshot->is_given = offset + kStateChunk >= snapshot->bytes->size();
  const auto& version = snapshot->version;
  return text_of(StateHead{version.epoch, version.history, version.is_partial, snapshot->digest,
                           snapshot->bytes->size(), offset}) +
         '\n' + snapshot->bytes->substr(offset, kStateChunk);
}

void StateTransfer::download(int64_t least_epoch, Donors donors, net::Duration at_most, Done done,
                             Known known) {
  download_ = std::make_shared<Download>(Download{.least_epoch = least_epoch,
                                                  .donors = std::move(donors),
                                                  .done = std::move(done),
                                                  .known = std::move(known)});
  endpoint_.after(at_most, alive_.guard([this, weak = std::weak_ptr(download_)] {
    const auto download = weak.lock();
    if (download && download == download_) end(std::nullopt);
  }));
  endpoint_.after(net::Duration(0), alive_.guard([this] { choose_donor(); }));
}

int64_t StateTransfer::least_epoch() const {
  return download_ ? download_->least_epoch : 0;
}

void StateTransfer::choose_donor() {
  if (!download_ || !download_->donor.empty()) return;
  const auto now = endpoint_.now();
  for (const auto& donor : download_->donors()) {
    const auto avoided = download_->avoided.find(donor);
    if (avoided != download_->avoided.end() && avoided->second > now) continue;
    download_->donor = donor;
    break;
  }
  if (download_->donor.empty()) {
    endpoint_.after(kRetry, alive_.guard([this] { choose_donor(); }));
    return;
  }
  download_->attempt = ++attempts_;
  download_->in_flight = 0;
  download_->early.clear();
  download_->asked = download_->bytes.size();
  ask_more();
}

void StateTransfer::ask_more() {
  auto& download = *download_;
  // The first answer of a donor tells which state it has.
  const size_t most = download.head && !download.bytes.empty() ? kRequestsInFlight : 1;
  const uint64_t total = download.head ? download.head->total : 1;
  while (download.in_flight < most && download.asked < total) {
    const auto offset = download.asked;
    ++download.in_flight;
    download.asked += kStateChunk;
    requests_.ask(download.donor,
                  text_of(StateQuestion{download.head ? download.head->digest : "", offset}),
                  answers_.limit(),
                  alive_.guard([this, attempt = download.attempt, offset, asked = endpoint_.now()](
                                   const net::Result& result, const std::string& answer) {
                    if (result.outcome == net::Outcome::done) answers_.add(endpoint_.now() - asked);
                    take_answer(attempt, offset, result, answer);
                  }),
                  net::Priority::bulk);
  }
}

void StateTransfer::take_answer(uint64_t attempt, uint64_t offset, const net::Result& result,
                                std::string_view answer) {
  if (!download_ || download_->attempt != attempt) return;
  auto& download = *download_;
  --download.in_flight;
  if (result.outcome != net::Outcome::done) return fail_donor("it does not answer", kShortly);
  const auto line = std::min(answer.find('\n'), answer.size());
  StateHead head;
  try {
    head = parsed<StateHead>(answer.substr(0, line));
  } catch (const Error& problem) {
    return fail_donor(problem.what(), kLong);
  }
  auto bytes = answer.substr(std::min(line + 1, answer.size()));
  if (head.digest.empty()) return fail_donor("it has no state now", kRetry);
  if (const auto fault = fault_of(head); !fault.empty()) return fail_donor(fault, kShortly);
  if (!download.head || !are_of_one_state(*download.head, head)) {
    download.head = head;
    download.bytes.clear();
    download.early.clear();
    download.asked = kStateChunk;
    offset = 0;
    // Answers about the state before count no more.
    download.attempt = ++attempts_;
    download.in_flight = 0;
  }
  const bool is_whole = bytes.size() == std::min<uint64_t>(kStateChunk, head.total - offset);
  if (head.total < offset || head.offset != offset || !is_whole) {
    return fail_donor("its answer has another size", kLong);
  }
  received_ += bytes.size();
  download.early.emplace(offset, bytes);
  while (!download.early.empty() && download.early.begin()->first == download.bytes.size()) {
    download.bytes += download.early.begin()->second;
    download.early.erase(download.early.begin());
  }
  if (download.bytes.size() < head.total) return ask_more();
  if (digest_of(download.bytes) != head.digest) {
    download.head.reset();
    download.bytes.clear();
    return fail_donor("its state has another digest", kLong);
  }
  end(State{{head.epoch, head.history, head.is_partial},
            std::make_shared<const std::string>(std::move(download.bytes))});
}

// Empty: none.
std::string StateTransfer::fault_of(const StateHead& head) const {
  const auto& download = *download_;
  if (head.epoch < download.least_epoch) {
    return fmt::format("its epoch is {} instead of {}", head.epoch, download.least_epoch);
  }
  if (head.total > most_bytes_) {
    return fmt::format("its state has {} bytes instead of at most {}", head.total, most_bytes_);
  }
  const bool is_known =
      !download.known || download.known({head.epoch, head.history, head.is_partial});
  return is_known ? "" : "nobody has told of its state";
}

void StateTransfer::fail_donor(const std::string& why, net::Duration avoided_for) {
  auto& download = *download_;
  log::info("[swarm] no state from {}: {}", download.donor.substr(0, 8), why);
  download.avoided[download.donor] = endpoint_.now() + avoided_for;
  download.donor.clear();
  download.attempt = ++attempts_;
  choose_donor();
}

void StateTransfer::end(const std::optional<State>& state) {
  const auto download = std::move(download_);
  download->done(state);
}

}  // namespace troika::swarm
