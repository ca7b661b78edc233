#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "troika/base/error.h"
#include "troika/comm/core.h"

namespace troika::comm {

namespace {

// The arguments and the state of one rank, sent to the other ranks.
struct Choice {
  int64_t color, key, next_id;
  std::array<uint64_t, Lifeline::kTagSpaces / 64> tag_spaces;
};
constexpr int64_t kChoiceWords = sizeof(Choice) / sizeof(int64_t);
static_assert(kMaxGroups < Lifeline::kTagSpaces);

Choice choice_of(int color, int key, const Lifeline& lifeline) {
  Choice choice{color, key, lifeline.next_id(), {}};
  const auto taken = lifeline.tag_spaces();
  for (size_t i = 0; i < taken.size(); ++i) {
    choice.tag_spaces[i / 64] |= uint64_t{taken[i]} << i % 64;
  }
  return choice;
}

// Returns a group id that no member has used yet.
int64_t choose_id(std::span<const Choice* const> members) {
  return std::ranges::max(members, {}, &Choice::next_id)->next_id;
}

// Returns a tag space that is free on all members, and avoids recently used ones.
uint32_t choose_tag_space(std::span<const Choice* const> members, int64_t id, uint32_t spaces) {
  const auto is_free = [&](uint32_t space) {
    return std::ranges::none_of(members, [&](const Choice* choice) {
      return choice->tag_spaces[space / 64] >> space % 64 & 1;
    });
  };
  for (uint32_t i = 0; i < spaces; ++i) {
    const auto space = static_cast<uint32_t>((id - 1 + i) % spaces) + 1;
    if (is_free(space)) return space;
  }
  throw Error("comm", ErrorKind::usage,
              {.what = "too many groups at a time",
               .got = fmt::format("{} and one more", spaces),
               .expected = fmt::format("at most {} besides the world, on any rank", spaces)});
}

// A message from a member of a list to the list's first rank. Sent as raw memory.
struct Application {
  Choice choice;
  uint64_t list_hash = 0;
  char list[128] = {};  // the start of the list, for errors
};
// The first rank's answer to an application.
struct Admission {
  int64_t id = 0;
  int64_t tag_space = 0;
};

Application application_for(const std::vector<int>& ranks, const NewGroupOptions& options,
                            const Lifeline& lifeline) {
  Application application{choice_of(0, 0, lifeline), 2 * ranks.size() + options.fails_alone};
  for (const int rank : ranks) {
    application.list_hash =
        (application.list_hash ^ static_cast<uint64_t>(rank)) * 0x100000001b3ull + 1;
  }
  const auto list =
      fmt::format("{}{}", options.fails_alone ? "failing alone, " : "", fmt::join(ranks, ", "));
  list.copy(application.list, sizeof(application.list) - 1);
  return application;
}

void require_list(const std::vector<int>& ranks, int rank, int size) {
  std::vector<bool> seen(static_cast<size_t>(size));
  const auto refuse = [&](const char* what) {
    throw Error("comm", ErrorKind::usage,
                {.what = what,
                 .got = fmt::format("{}", fmt::join(ranks, ", ")),
                 .expected = fmt::format("different ranks of 0 to {}, rank {} among them", size - 1,
                                         rank)});
  };
  for (const int member : ranks) {
    if (member < 0 || member >= size) refuse("a group of a rank that there is not");
    if (seen[static_cast<size_t>(member)]) refuse("a rank is twice in a new group");
    seen[static_cast<size_t>(member)] = true;
  }
  if (!seen[static_cast<size_t>(rank)]) refuse("only members make a new group");
}

template <typename Plain>
at::Tensor bytes_of(Plain& plain) {
  return at::from_blob(&plain, {static_cast<int64_t>(sizeof(Plain))}, at::kByte);
}

}  // namespace

Group Group::make_part(const std::vector<int>& members, int64_t id, uint32_t tag_space,
                       const NewGroupOptions& options) const {
  auto& impl = core_->impl();
  impl.lifeline()->take_id(id);
  const GroupInfo& whole = impl.info();
  GroupInfo info{.backend = whole.backend,
                 .size = static_cast<int>(members.size()),
                 .id = static_cast<uint32_t>(id),
                 .tag_space = tag_space,
                 .tag_spaces = whole.tag_spaces,
                 .any_thread = whole.any_thread,
                 .receives_any = whole.receives_any,
                 .can_fail_alone = whole.can_fail_alone,
                 .fails_alone = whole.fails_alone || options.fails_alone};
  for (size_t m = 0; m < members.size(); ++m) {
    const auto r = static_cast<size_t>(members[m]);
    if (members[m] == rank()) info.rank = static_cast<int>(m);
    info.nodes.push_back(whole.nodes[r]);
    info.world_ranks.push_back(whole.world_ranks[r]);
  }
  std::shared_ptr<GroupImpl> part;
  core_->guarded([&] {
    part = impl.split(core_->shared_impl(), std::move(info), members, core_->deadline());
  });
  Group group(std::move(part), this->options());
  const bool is_all = group.size() == size();
  if (is_all) group.core_->collectives().assume(core_->collectives().known_links());
  return group;
}

std::optional<Group> Group::split(int color, int key, Site site) const {
  auto& impl = core_->impl();
  // Every rank learns the colors of all ranks, and ids that no member has used yet.
  Choice own = choice_of(color, key, *impl.lifeline());
  const auto table = at::empty({size(), kChoiceWords}, at::kLong);
  all_gather(table, at::from_blob(&own, {kChoiceWords}, at::kLong), {}, {.label = "split"}, site);
  const auto* choices = static_cast<const Choice*>(table.data_ptr());
  if (color < 0) return std::nullopt;
  std::vector<int> members;
  std::vector<const Choice*> theirs;
  for (int r = 0; r < size(); ++r) {
    if (choices[r].color != color) continue;
    members.push_back(r);
    theirs.push_back(&choices[r]);
  }
  std::ranges::stable_sort(members, {}, [&](int r) { return choices[r].key; });
  const int64_t id = choose_id(theirs);
  return make_part(members, id, choose_tag_space(theirs, id, impl.info().tag_spaces), {});
}

// The first rank of the list receives the applications of all others, chooses id and tag space, and
// sends them back.
Group Group::new_group(const std::vector<int>& ranks, const NewGroupOptions& options,
                       Site site) const {
  auto& impl = core_->impl();
  require_list(ranks, rank(), size());
  if (options.fails_alone && !impl.info().can_fail_alone) {
    throw Error("comm", ErrorKind::usage,
                {.what = fmt::format("back end {} ends all groups of a world with one that fails",
                                     impl.info().backend),
                 .expected = "local, shm or tcp, or a group that does not fail alone"});
  }
  constexpr std::string_view kLabel = "new_group";
  const auto send_to = [&](int peer, const at::Tensor& tensor) {
    return Work(core_->send(
        tensor, peer,
        core_->make_fingerprint(Direction::send, peer, kNewGroupTag, kNewGroupTag, kLabel, site)));
  };
  const auto receive_from = [&](int peer, const at::Tensor& tensor) {
    return Work(core_->receive(tensor, peer,
                               core_->make_fingerprint(Direction::receive, peer, kNewGroupTag,
                                                       kNewGroupTag, kLabel, site)));
  };
  std::vector<Application> applications{application_for(ranks, options, *impl.lifeline())};
  Admission admission;
  if (rank() != ranks.front()) {
    send_to(ranks.front(), bytes_of(applications.front())).wait();
    receive_from(ranks.front(), bytes_of(admission)).wait();
    return make_part(ranks, admission.id, static_cast<uint32_t>(admission.tag_space), options);
  }
  applications.resize(ranks.size());
  std::vector<Work> arriving;
  for (size_t m = 1; m < ranks.size(); ++m) {
    arriving.push_back(receive_from(ranks[m], bytes_of(applications[m])));
  }
  for (const auto& work : arriving) work.wait();
  core_->guarded([&] {
    std::vector<const Choice*> choices;
    for (size_t m = 0; m < ranks.size(); ++m) {
      if (applications[m].list_hash != applications[0].list_hash) {
        throw Error(
            "comm", ErrorKind::usage,
            {.what = "ranks make different groups",
             .got = fmt::format("{}: {}; {}: {}", impl.rank_name(rank()), applications[0].list,
                                impl.rank_name(ranks[m]), applications[m].list),
             .expected =
                 "the same list and option on every rank of it, and the same order of groups "
                 "on ranks that share several"});
      }
      choices.push_back(&applications[m].choice);
    }
    admission.id = choose_id(choices);
    admission.tag_space = choose_tag_space(choices, admission.id, impl.info().tag_spaces);
  });
  std::vector<Work> telling;
  for (size_t m = 1; m < ranks.size(); ++m) {
    telling.push_back(send_to(ranks[m], bytes_of(admission)));
  }
  for (const auto& work : telling) work.wait();
  return make_part(ranks, admission.id, static_cast<uint32_t>(admission.tag_space), options);
}

}  // namespace troika::comm
