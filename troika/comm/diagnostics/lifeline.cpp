#include "troika/comm/diagnostics/lifeline.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include "troika/base/text.h"

namespace troika::comm {

namespace {

constexpr std::array kKinds{
    std::pair{ErrorKind::failure, "failure: "}, std::pair{ErrorKind::usage, "usage: "},
    std::pair{ErrorKind::peer, "peer: "}, std::pair{ErrorKind::timeout, "timeout: "}};

}  // namespace

std::string Lifeline::with_kind(const Error& cause) {
  for (const auto& [kind, prefix] : kKinds) {
    if (kind == cause.kind()) return std::string(prefix) + cause.what();
  }
  return cause.what();
}

Lifeline::Lifeline(std::unique_ptr<ControlPlane> plane, int world_rank)
    : world_rank_(world_rank),
      plane_(std::move(plane)),
      calls_(world_rank, [this](int rank) { return rank_name(rank); }) {
  plane_->listen(
      {.lost = [this](int rank, const std::string& why) { hear_lost(rank, why); },
       .left = [this](int rank, const std::string& farewell) { hear_left(rank, farewell); },
       .answer = [this](const std::string& question) { return answer(question); }});
}

Lifeline::~Lifeline() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  news_.notify_all();
  if (watch_.joinable()) watch_.join();
  leave();
  plane_.reset();  // before the members that its listener uses
}

Error Lifeline::loss_of(int rank, const std::string& why) const {
  for (const auto& [kind, prefix] : kKinds) {
    if (why.starts_with(prefix)) {
      const std::string rest = why.substr(std::string_view(prefix).size());
      return Error("comm", kind, {.what = fmt::format("{} gave up: {}", rank_name(rank), rest)});
    }
  }
  return Error("comm", ErrorKind::peer,
               {.what = fmt::format("{} is gone: {}", rank_name(rank), why)});
}

void Lifeline::leave() {
  std::string farewell;
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(parted_, true)) return;
    farewell = groups_.farewell();
  }
  plane_->leave(farewell);
}

void Lifeline::require_live() const {
  if (is_cut()) throw Error(*cause());
}

void Lifeline::require_live(uint32_t tag_space) const {
  if (auto why = is_cut(tag_space) ? cause(tag_space) : std::nullopt) throw Error(*std::move(why));
}

void Lifeline::explain_broken_connection() const {
  {
    std::unique_lock lock(mutex_);
    news_.wait_for(lock, kNewsTime, [&] { return is_cut(); });
  }
  require_live();
}

void Lifeline::witness_death(int world_rank) {
  hear_lost(world_rank, "its process has ended");
}

bool Lifeline::has_left(int world_rank) const {
  const std::lock_guard lock(mutex_);
  return departed_.contains(world_rank);
}

void Lifeline::cut(const Error& cause, bool is_reported) {
  {
    const std::lock_guard lock(mutex_);
    if (!loss_.set(cause, is_reported)) return;
  }
  news_.notify_all();
  wakes_.call_all();
}

void Lifeline::abandon(const Error& cause) {
  give_up(cause, with_kind(cause));
}

void Lifeline::abandon_for_program() {
  const std::string why = "its program failed";
  give_up(loss_of(world_rank_, why), why);
}

void Lifeline::give_up(const Error& cause, const std::string& why) {
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(parted_, true)) return;
  }
  cut(cause, false);
  plane_->fail(why);
}

void Lifeline::hear_lost(int rank, const std::string& why) {
  cut(loss_of(rank, why), true);
}

// The failures that follow are known as soon as the departure is: a wait that ends because
// has_left() is true finds its whole cause.
void Lifeline::hear_left(int rank, const std::string& farewell) {
  bool has_failed = false;
  {
    const std::lock_guard lock(mutex_);
    departed_.add(rank, farewell);
    for (const auto& [id, group] : groups_.all()) {
      const auto progress = group.recorder->progress();
      const auto error = progress.running ? absence(group, progress.sequence) : std::nullopt;
      if (!error) continue;
      const bool is_first =
          group.fails_alone ? failures_.add(group.tag_space, *error) : loss_.set(*error, true);
      has_failed |= is_first;
    }
  }
  news_.notify_all();
  if (has_failed) wakes_.call_all();
}

std::optional<Error> Lifeline::absence(const Enrolment& group, int64_t sequence) const {
  for (const int rank : departed_.all()) {
    if (std::ranges::find(group.ranks, rank) == group.ranks.end()) continue;
    const auto last = departed_.last_of(rank, group.id);
    if (last && last->sequence >= sequence) continue;
    return Error(
        "comm", ErrorKind::peer,
        {.what = fmt::format("{} has left and takes no part in {}", rank_name(rank),
                             group.recorder->status().call),
         .got = last && last->sequence >= 0 ? fmt::format("its last call was {}", last->call)
                                            : "no call of it in this group",
         .expected = "the same calls on every rank"});
  }
  return std::nullopt;
}

int64_t Lifeline::next_id() const {
  const std::lock_guard lock(mutex_);
  return groups_.next_id();
}

void Lifeline::take_id(int64_t id) {
  const std::lock_guard lock(mutex_);
  groups_.take_id(id);
}

std::bitset<Lifeline::kTagSpaces> Lifeline::tag_spaces() const {
  const std::lock_guard lock(mutex_);
  auto taken = failures_.tag_spaces();
  for (const auto& [id, group] : groups_.all()) taken.set(group.tag_space);
  return taken;
}

void Lifeline::enrol(Enrolment group) {
  const std::lock_guard lock(mutex_);
  const bool watches = group.stall_warning > Milliseconds(0) || !group.flight_record.empty();
  const bool has_others = group.ranks.size() > 1;
  failures_.join(group);
  groups_.add(std::move(group));
  if (watches && has_others && !watch_.joinable()) watch_ = std::thread([this] { watch(); });
}

void Lifeline::dismiss(uint32_t id) {
  const std::lock_guard lock(mutex_);
  groups_.remove(id);
  calls_.forget(id);
}

void Lifeline::require_present(uint32_t id, int64_t sequence) const {
  const std::lock_guard lock(mutex_);
  if (departed_.all().empty()) return;
  const auto* group = groups_.find(id);
  if (!group) return;
  if (auto error = absence(*group, sequence)) throw Error(*error);
}

std::string Lifeline::answer(const std::string& question) {
  if (hear_of_failure(question)) return {};
  if (auto words = answer_about_message(question)) return *std::move(words);
  const std::lock_guard lock(mutex_);
  if (question == kAllGroups) return to_text(groups_.account());
  const auto id = parse_int(question);
  return id ? groups_.status(static_cast<uint32_t>(*id)).to_text() : "";
}

// A rank whose answer is missing before the deadline is lost or has left. The control plane closes
// questions to it before it calls the listener.
void Lifeline::await_losses(const std::vector<int>& ranks, const cluster::Answers& answers,
                            Deadline deadline) const {
  std::unique_lock lock(mutex_);
  const auto is_known = [&](int rank) {
    const auto index = static_cast<size_t>(rank);
    return rank == world_rank_ || index >= answers.text.size() || answers.text[index] ||
           departed_.contains(rank);
  };
  news_.wait_until(lock, deadline.at(),
                   [&] { return is_cut() || std::ranges::all_of(ranks, is_known); });
}

Lifeline::Members Lifeline::ask_members(uint32_t id, Deadline deadline) {
  Members members;
  {
    const std::lock_guard lock(mutex_);
    const auto* group = groups_.find(id);
    if (!group) return {};
    members.ranks = group->ranks;
  }
  const auto answers = plane_->ask_all(std::to_string(id), deadline);
  await_losses(members.ranks, answers, deadline);
  const std::lock_guard lock(mutex_);
  for (const int rank : members.ranks) {
    const auto index = static_cast<size_t>(rank);
    const bool is_told = index < answers.text.size();
    auto& status = members.statuses.emplace_back();
    members.silent.push_back(is_told ? answers.silent[index] : rank);
    if (is_told && answers.text[index]) status = RankStatus::from_text(*answers.text[index]);
    if (departed_.contains(rank)) {
      status = departed_.last_of(rank, id).value_or(RankStatus{});
      status->left = true;
    }
  }
  groups_.set_known(id, members.statuses);
  return members;
}

std::string Lifeline::missing(uint32_t id, int64_t sequence, Deadline deadline) {
  const auto [ranks, statuses, silent] = ask_members(id, deadline);
  std::vector<std::string> lines;
  std::set<int> named;
  for (size_t r = 0; r < ranks.size(); ++r) {
    if (ranks[r] == world_rank_) continue;
    const auto& status = statuses[r];
    if (!status) {
      // One line for a rank that relays and does not answer: the ranks behind it are unknown.
      if (!named.insert(silent[r]).second) continue;
      lines.push_back(
          fmt::format("{} does not answer (it is stopped, or out of reach)", rank_name(silent[r])));
    } else if (status->sequence < sequence) {
      lines.push_back(fmt::format("{} has {} ({})", rank_name(ranks[r]),
                                  status->left ? "left" : "not called it",
                                  status->describe_last()));
    }
  }
  return fmt::format("{}", fmt::join(lines, "; "));
}

}  // namespace troika::comm
