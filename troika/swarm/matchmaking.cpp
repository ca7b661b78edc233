#include "troika/swarm/matchmaking.h"

#include <algorithm>
#include <array>

#include "troika/base/log.h"
#include "troika/swarm/json_text.h"

namespace troika::swarm {

namespace {

constexpr size_t kMostMatchmaking = size_t{1} << 20;
// Bytes of a member's text. The message that begins a group of kMostFollowers fits the channel.
constexpr size_t kMostGathered = 1024;
constexpr size_t kMostFollowers = 512;
constexpr net::Duration kTick = std::chrono::milliseconds(50);
// How long a peer that refused, or that did not answer, is not asked again.
constexpr net::Duration kAfterRefusal = std::chrono::milliseconds(500);
constexpr net::Duration kAfterSilence = std::chrono::seconds(5);
constexpr net::Duration kLeastAnswer = std::chrono::seconds(1);
constexpr net::Duration kMostAnswer = std::chrono::seconds(3);
// For a leader to begin.
constexpr WallTime kLongestWait = std::chrono::minutes(1);
// Beyond its deadline, until the record of a peer that seeks expires.
constexpr net::Duration kPatience = std::chrono::seconds(2);

struct SeekingBody {
  std::string key;
  int64_t deadline = 0;
  bool is_client = false;
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(SeekingBody, key, deadline, is_client)

}  // namespace

struct Matchmaking::Message {
  enum class Kind : int { join, accepted, refused, begin, left };

  Kind kind = Kind::join;
  uint64_t attempt = 0;
  std::string key = {}, schema = {}, gathered = {};  // of a join
  bool is_client = false;
  int64_t deadline = 0;  // of a join; of an acceptance: milliseconds until the leader begins
  Refusal refusal = Refusal::not_seeking;
  std::string suggested = {};
  uint64_t id = 0;  // of a begin
  std::map<std::string, std::string> members = {};

  NLOHMANN_DEFINE_TYPE_INTRUSIVE(Message, kind, attempt, key, schema, gathered, is_client, deadline,
                                 refusal, suggested, id, members)
};

const char* describe(Refusal refusal) {
  static constexpr std::array<const char*, 10> texts{
      "it seeks no group",
      "it does not know the asker as a peer of the run",
      "it seeks another group",
      "its vectors have another form",
      "its place is not before that of the asker",
      "it has a leader itself, or cannot lead",
      "its group is full",
      "it has found a leader itself",
      "it did not answer in time",
      "the asker tells too much about itself"};
  return texts[std::min(static_cast<size_t>(refusal), texts.size() - 1)];
}

bool is_seeking(const Record& record) {
  try {
    parsed<SeekingBody>(record.body);
    return true;
  } catch (const Error&) {
    return false;
  }
}

Matchmaking::Matchmaking(net::Endpoint& endpoint, Directory& directory)
    : endpoint_(endpoint), directory_(directory), answers_(kLeastAnswer, kMostAnswer) {
  endpoint_.handle(kMatchmaking, kMostMatchmaking,
                   [this](const std::string& peer, const std::string& text) { take(peer, text); });
  endpoint_.after(kTick, alive_.guard([this] { tick(); }));
}

Matchmaking::~Matchmaking() {
  stop();
  endpoint_.handle(kMatchmaking, 0, {});
}

void Matchmaking::take_change(const net::PeerChange& change) {
  if (change.is_up) {
    connected_.insert(change.peer);
    return reconsider();
  }
  connected_.erase(change.peer);
  followers_.erase(change.peer);
  if (change.peer == leader_) take_refusal(leader_, Refusal::no_answer, {});
  reconsider();
}

void Matchmaking::seek(Search search, Done done) {
  stop();
  const auto left = search.deadline - directory_.now();
  directory_.publish(kSeeking, {}, 0,
                     std::max(WallTime(0), left) + std::chrono::duration_cast<WallTime>(kPatience),
                     text_of(SeekingBody{search.key, search.deadline.count(), search.is_client}));
  // The directory calls reconsider(), which does nothing before this.
  search_ = std::move(search);
  done_ = std::move(done);
  endpoint_.after(net::Duration(0), alive_.guard([this] { reconsider(); }));
}

void Matchmaking::stop() {
  if (done_) finish();
}

// Ends the search, and returns the function that is to be called at its end.
Matchmaking::Done Matchmaking::finish() {
  auto done = std::exchange(done_, nullptr);
  leave_leader();
  disband({});
  avoided_.clear();
  suggested_.clear();
  directory_.publish(kSeeking, {}, 0, {}, {});
  return done;
}

void Matchmaking::reconsider() {
  if (!done_) return;
  if (leader_.empty()) ask_next();
  begin_if_complete();
}

SeekingPlace Matchmaking::place() const {
  return {search_.deadline, endpoint_.name()};
}

void Matchmaking::take(const std::string& peer, const std::string& text) {
  Message message;
  try {
    message = parsed<Message>(text);
  } catch (const Error& problem) {
    return log::warn("[swarm] a message of {} is ignored: {}", peer, problem.what());
  }
  const bool is_answer = done_ && peer == leader_ && message.attempt == attempt_;
  switch (message.kind) {
    case Message::Kind::join:
      return take_join(peer, message);
    case Message::Kind::accepted:
      if (!is_answer || is_accepted_) return;
      is_accepted_ = true;
      answers_.add(endpoint_.now() - asked_);
      leader_until_ = endpoint_.now() + answers_.limit() +
                      WallTime(std::clamp<int64_t>(message.deadline, 0, kLongestWait.count()));
      return disband(leader_);
    case Message::Kind::refused:
      if (is_answer) take_refusal(peer, message.refusal, message.suggested);
      return;
    case Message::Kind::begin:
      if (is_answer && is_accepted_) take_begin(peer, message);
      return;
    case Message::Kind::left:
      followers_.erase(peer);
      return;
  }
}

std::optional<Refusal> Matchmaking::fault_of(const std::string& peer, const Message& join) const {
  if (!done_) return Refusal::not_seeking;
  if (search_.admits && !search_.admits(peer)) return Refusal::not_admitted;
  if (join.key != search_.key) return Refusal::bad_group_key;
  if (join.schema != search_.schema) return Refusal::bad_schema;
  if (search_.is_client || is_accepted_) return Refusal::not_a_leader;
  const bool is_before = SeekingPlace(WallTime(join.deadline), peer) <= place();
  if (is_before && !join.is_client) return Refusal::bad_place;
  if (text_of(join.gathered).size() > kMostGathered) return Refusal::too_large;
  const size_t most = std::min(search_.target_size, kMostFollowers + 1);
  if (followers_.size() + 1 >= most && !followers_.contains(peer)) return Refusal::group_is_full;
  return std::nullopt;
}

void Matchmaking::take_join(const std::string& peer, const Message& join) {
  if (const auto fault = fault_of(peer, join)) {
    return send(peer, {.kind = Message::Kind::refused,
                       .attempt = join.attempt,
                       .refusal = *fault,
                       .suggested = is_accepted_ ? leader_ : std::string()});
  }
  followers_[peer] = {join.attempt, join.gathered};
  send(peer, {.kind = Message::Kind::accepted,
              .attempt = join.attempt,
              .deadline = (search_.deadline - directory_.now()).count()});
  begin_if_complete();
}

void Matchmaking::take_refusal(const std::string& peer, Refusal refusal,
                               const std::string& suggested) {
  if (refusal != Refusal::not_seeking) {
    log::info("[swarm] {} does not lead this peer: {}", peer.substr(0, 8), describe(refusal));
  }
  avoided_[peer] =
      endpoint_.now() + (refusal == Refusal::no_answer ? kAfterSilence : kAfterRefusal);
  suggested_ = suggested;
  leader_.clear();
  is_accepted_ = false;
  // Not from within this call, which may be one of ask_next(): a message to a peer that has just
  // been lost fails at once.
  endpoint_.after(net::Duration(0), alive_.guard([this] { reconsider(); }));
}

void Matchmaking::take_begin(const std::string& peer, const Message& begin) {
  Match match{.id = begin.id, .members = {}};
  for (const auto& [name, gathered] : begin.members) match.members.push_back({name, gathered});
  const auto own = begin.members.find(endpoint_.name());
  if (own == begin.members.end() || own->second != search_.gathered) {
    return take_refusal(peer, Refusal::group_disbanded, {});
  }
  leader_.clear();  // it knows that the search has ended
  is_accepted_ = false;
  end(match);
}

void Matchmaking::ask_next() {
  if (!done_) return;
  const auto now = endpoint_.now();
  std::optional<SeekingPlace> best;
  for (const auto& record : directory_.find(kSeeking)) {
    const auto body = parsed<SeekingBody>(record.body);
    const SeekingPlace theirs(WallTime(body.deadline), record.peer);
    const auto avoided = avoided_.find(record.peer);
    // Clients lead nobody, so all others are before them.
    const bool is_before = search_.is_client || theirs < place();
    if (record.peer == endpoint_.name() || body.key != search_.key || body.is_client ||
        !is_before || !connected_.contains(record.peer) ||
        (search_.admits && !search_.admits(record.peer)) ||
        (avoided != avoided_.end() && avoided->second > now)) {
      continue;
    }
    // The suggestion of a peer that refused comes first.
    if (!best || (best->second != suggested_ && (record.peer == suggested_ || theirs < *best))) {
      best = theirs;
    }
  }
  suggested_.clear();
  if (!best) return;
  leader_ = best->second;
  is_accepted_ = false;
  asked_ = now;
  leader_until_ = now + answers_.limit();
  ++attempt_;
  send(leader_,
       {.kind = Message::Kind::join,
        .attempt = attempt_,
        .key = search_.key,
        .schema = search_.schema,
        .gathered = search_.gathered,
        .is_client = search_.is_client,
        .deadline = search_.deadline.count()},
       alive_.guard([this, peer = leader_, attempt = attempt_](const net::Result& result) {
         if (result.outcome == net::Outcome::done || peer != leader_ || attempt != attempt_) return;
         take_refusal(peer, Refusal::no_answer, {});
       }));
}

void Matchmaking::begin_if_complete() {
  // A leader that has been asked counts on this peer when it accepts it.
  if (!done_ || !leader_.empty() || search_.is_client) return;
  const size_t size = followers_.size() + 1;
  if (size < search_.least_size) return;
  const bool is_complete =
      size >= search_.target_size || (search_.is_complete && search_.is_complete(members()));
  if (is_complete) begin();
}

// The group that this peer leads, by name.
std::vector<GroupMember> Matchmaking::members() const {
  std::vector<GroupMember> members{{endpoint_.name(), search_.gathered}};
  for (const auto& [name, follower] : followers_) members.push_back({name, follower.gathered});
  std::ranges::sort(members, {}, &GroupMember::name);
  return members;
}

void Matchmaking::begin() {
  const auto digest = digest_of(endpoint_.name() + search_.key + std::to_string(++attempt_) +
                                std::to_string(search_.deadline.count()));
  const Match match{.id = std::stoull(digest.substr(0, 16), nullptr, 16), .members = members()};
  Message message{.kind = Message::Kind::begin, .id = match.id, .members = {}};
  for (const auto& [name, gathered] : match.members) message.members[name] = gathered;
  for (const auto& [name, follower] : std::exchange(followers_, {})) {
    message.attempt = follower.attempt;
    send(name, message);
  }
  end(match);
}

void Matchmaking::tick() {
  endpoint_.after(kTick, alive_.guard([this] { tick(); }));
  if (!done_) return;
  if (!leader_.empty() && endpoint_.now() > leader_until_) {
    const auto peer = leader_;
    leave_leader();
    take_refusal(peer, Refusal::no_answer, {});
  }
  reconsider();
  if (!done_ || !leader_.empty() || directory_.now() < search_.deadline) return;
  if (!search_.is_client && followers_.size() + 1 >= search_.least_size) {
    begin();
  } else {
    end(std::nullopt);
  }
}

void Matchmaking::disband(const std::string& leader) {
  for (const auto& [name, follower] : std::exchange(followers_, {})) {
    send(name, {.kind = Message::Kind::refused,
                .attempt = follower.attempt,
                .refusal = Refusal::group_disbanded,
                .suggested = leader});
  }
}

void Matchmaking::leave_leader() {
  if (!leader_.empty()) send(leader_, {.kind = Message::Kind::left});
  leader_.clear();
  is_accepted_ = false;
}

void Matchmaking::end(const std::optional<Match>& match) {
  finish()(match);
}

void Matchmaking::send(const std::string& peer, const Message& message,
                       net::Completion completion) {
  net::send_owned(endpoint_, peer, kMatchmaking,
                  std::make_shared<const std::string>(text_of(message)), net::Priority::urgent,
                  std::move(completion));
}

}  // namespace troika::swarm
