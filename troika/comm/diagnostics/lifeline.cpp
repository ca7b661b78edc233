#include "troika/comm/diagnostics/lifeline.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "troika/base/text.h"

namespace troika::comm {

namespace {

// Number of former groups whose last status a rank keeps, to answer questions about them.
constexpr size_t kDismissedKept = 1024;

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

Lifeline::Lifeline(std::unique_ptr<ControlPlane> plane, int world_rank, int world_size)
    : world_rank_(world_rank),
      world_size_(world_size),
      plane_(std::move(plane)),
      deadlock_watch_(world_rank, [this](int rank) { return rank_name(rank); }) {
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

void Lifeline::place_ranks(const layout::Mesh& mesh) {
  const std::lock_guard lock(mesh_mutex_);
  mesh_.reset();
  if (mesh.axes().size() > 1) mesh_ = mesh;
}

std::string Lifeline::place(int world_rank) const {
  const std::lock_guard lock(mesh_mutex_);
  return mesh_ ? mesh_->place(world_rank) : "";
}

std::string Lifeline::rank_name(int world_rank) const {
  const std::lock_guard lock(mesh_mutex_);
  return mesh_ ? mesh_->describe(world_rank) : fmt::format("rank {}", world_rank);
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
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(parted_, true)) return;
  }
  plane_->leave(farewell());
}

void Lifeline::wake_with(const void* owner, std::function<void()> wake) {
  const std::lock_guard lock(wake_mutex_);
  if (wake) {
    wakes_[owner] = std::move(wake);
  } else {
    wakes_.erase(owner);
  }
}

std::optional<Error> Lifeline::cause() const {
  const std::lock_guard lock(mutex_);
  return cause_;
}

void Lifeline::require_live() const {
  if (!cut_) return;
  const std::lock_guard lock(mutex_);
  throw Error(*cause_);
}

void Lifeline::require_live(uint32_t tag_space) const {
  if (auto why = is_cut(tag_space) ? cause(tag_space) : std::nullopt) throw Error(*std::move(why));
}

void Lifeline::explain_broken_connection() const {
  {
    std::unique_lock lock(mutex_);
    news_.wait_for(lock, kNewsTime, [&] { return cut_.load(); });
  }
  require_live();
}

void Lifeline::witness_death(int world_rank) {
  hear_lost(world_rank, "its process has ended");
}

bool Lifeline::has_left(int world_rank) const {
  const std::lock_guard lock(mutex_);
  return std::ranges::any_of(departed_, [&](const Departed& d) { return d.rank == world_rank; });
}

void Lifeline::cut(const Error& cause, bool heard) {
  {
    const std::lock_guard lock(mutex_);
    if (cut_) return;
    cause_ = cause;
    heard_ = heard;
    cut_ = true;
  }
  news_.notify_all();
  const std::lock_guard lock(wake_mutex_);
  for (const auto& [owner, wake] : wakes_) wake();
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

void Lifeline::hear_left(int rank, const std::string& farewell) {
  Departed departed{rank, {}};
  const auto groups = nlohmann::json::parse(farewell, nullptr, false);
  if (groups.is_object()) {
    for (const auto& [id, text] : groups.items()) {
      const auto number = parse_int(id);
      if (!number || !text.is_string()) continue;
      if (auto last = RankStatus::from_text(text)) {
        departed.last[static_cast<uint32_t>(*number)] = *std::move(last);
      }
    }
  }
  std::optional<Error> hopeless;
  std::vector<std::pair<uint32_t, Error>> alone;
  {
    const std::lock_guard lock(mutex_);
    departed_.push_back(std::move(departed));
    news_.notify_all();
    for (const auto& [id, group] : groups_) {
      const auto progress = group.recorder->progress();
      auto error = progress.running ? absence(group, progress.sequence) : std::nullopt;
      if (!error) continue;
      if (group.fails_alone) {
        alone.emplace_back(id, *std::move(error));
      } else if (!hopeless) {
        hopeless = std::move(error);
      }
    }
  }
  for (const auto& [id, error] : alone) mark_failed(id, error);
  if (hopeless) cut(*hopeless, true);
}

std::optional<RankStatus> Lifeline::last_of(const Departed& departed, uint32_t id) const {
  const auto last = departed.last.find(id);
  return last == departed.last.end() ? std::nullopt : std::optional(last->second);
}

std::optional<Error> Lifeline::absence(const Enrolment& group, int64_t sequence) const {
  for (const auto& departed : departed_) {
    if (std::ranges::find(group.ranks, departed.rank) == group.ranks.end()) continue;
    const auto last = last_of(departed, group.id);
    if (last && last->sequence >= sequence) continue;
    return Error(
        "comm", ErrorKind::peer,
        {.what = fmt::format("{} has left and takes no part in {}", rank_name(departed.rank),
                             group.recorder->status().call),
         .got = last && last->sequence >= 0 ? fmt::format("its last call was {}", last->call)
                                            : "no call of it in this group",
         .expected = "the same calls on every rank"});
  }
  return std::nullopt;
}

int64_t Lifeline::next_id() const {
  const std::lock_guard lock(mutex_);
  return last_id_ + 1;
}

void Lifeline::take_id(int64_t id) {
  const std::lock_guard lock(mutex_);
  last_id_ = std::max(last_id_, id);
}

std::bitset<Lifeline::kTagSpaces> Lifeline::tag_spaces() const {
  std::bitset<kTagSpaces> taken;
  const std::lock_guard lock(mutex_);
  for (const auto& [id, group] : groups_) taken.set(group.tag_space);
  for (const auto& [space, cause] : failures_) taken.set(space);
  return taken;
}

void Lifeline::enrol(Enrolment group) {
  const std::lock_guard lock(mutex_);
  const bool watches = group.stall_warning > Milliseconds(0) || !group.flight_record.empty();
  alone_[group.tag_space] = group.fails_alone;
  const auto early = std::ranges::find_if(early_failures_, [&](const EarlyFailure& failure) {
    return failure.id == group.id && failure.first == group.ranks.front();
  });
  if (group.fails_alone && early != early_failures_.end()) {
    failures_.emplace(group.tag_space, early->cause);
    failed_[group.tag_space] = true;
  }
  groups_[group.id] = std::move(group);
  if (watches && world_size_ > 1 && !watch_.joinable()) watch_ = std::thread([this] { watch(); });
}

void Lifeline::dismiss(uint32_t id) {
  const std::lock_guard lock(mutex_);
  const auto group = groups_.find(id);
  RankStatus last = group->second.recorder->status();
  last.left = true;
  dismissed_.emplace_back(id, std::move(last));
  if (dismissed_.size() > kDismissedKept) dismissed_.pop_front();
  groups_.erase(group);
  known_.erase(id);
  warned_.erase(id);
}

void Lifeline::require_present(uint32_t id, int64_t sequence) const {
  const std::lock_guard lock(mutex_);
  if (departed_.empty()) return;
  const auto group = groups_.find(id);
  if (group == groups_.end()) return;
  if (auto error = absence(group->second, sequence)) throw Error(*error);
}

std::string Lifeline::answer(const std::string& question) {
  if (hear_of_failure(question)) return {};
  if (question == kAllGroups) return to_text(account());
  if (auto words = answer_about_message(question)) return *std::move(words);
  const auto id = parse_int(question);
  if (!id) return {};
  const std::lock_guard lock(mutex_);
  if (const auto group = groups_.find(static_cast<uint32_t>(*id)); group != groups_.end()) {
    return group->second.recorder->status().to_text();
  }
  const auto last = std::ranges::find(dismissed_, static_cast<uint32_t>(*id),
                                      &std::pair<uint32_t, RankStatus>::first);
  return (last == dismissed_.end() ? RankStatus{} : last->second).to_text();
}

Account Lifeline::account() const {
  Account account;
  const std::lock_guard lock(mutex_);
  for (const auto& [id, group] : groups_) {
    const auto progress = group.recorder->progress();
    account.push_back({.id = id,
                       .first = group.ranks.front(),
                       .sequence = progress.sequence,
                       .inside = progress.inside,
                       .caller = progress.caller,
                       .call = progress.running ? group.recorder->status().call : ""});
  }
  return account;
}

std::string Lifeline::farewell() const {
  nlohmann::json groups = nlohmann::json::object();
  const std::lock_guard lock(mutex_);
  for (const auto& [id, last] : dismissed_) groups[std::to_string(id)] = last.to_text();
  return groups.dump();
}

Lifeline::Members Lifeline::ask_members(uint32_t id, Deadline deadline) {
  Members members;
  {
    const std::lock_guard lock(mutex_);
    const auto group = groups_.find(id);
    if (group == groups_.end()) return {};
    members.ranks = group->second.ranks;
  }
  const auto answers = plane_->ask_all(std::to_string(id), deadline);
  std::unique_lock lock(mutex_);
  // Answers missing before the deadline belong to lost ranks: wait for the notice of the loss.
  const auto is_known = [&](int rank) {
    const auto index = static_cast<size_t>(rank);
    return index >= answers.text.size() || answers.text[index] ||
           std::ranges::find(departed_, rank, &Departed::rank) != departed_.end();
  };
  news_.wait_until(lock, deadline.at(),
                   [&] { return cut_ || std::ranges::all_of(members.ranks, is_known); });
  for (const int rank : members.ranks) {
    const auto index = static_cast<size_t>(rank);
    const bool is_told = index < answers.text.size();
    auto& status = members.statuses.emplace_back();
    members.silent.push_back(is_told ? answers.silent[index] : rank);
    if (is_told && answers.text[index]) status = RankStatus::from_text(*answers.text[index]);
    for (const auto& departed : departed_) {
      if (departed.rank != rank) continue;
      status = last_of(departed, id).value_or(RankStatus{});
      status->left = true;
    }
  }
  known_[id] = members.statuses;
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
