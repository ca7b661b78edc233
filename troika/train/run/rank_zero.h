// Calls that one rank makes for all, as Lightning's rank_zero_only and rank_zero_first.
#pragma once

#include <exception>
#include <string>

#include "troika/base/error.h"
#include "troika/comm/group.h"

namespace troika::train {

// Calls `body` on rank 0 alone; the others go on at once. A collective in it would be called on one
// rank only, which the group refuses or reports by its time-out.
template <typename Body>
void rank_zero_only(const comm::Group& group, const Body& body) {
  if (group.rank() == 0) body();
}

// Calls `body` on rank 0, then on the others side by side, e.g. to fill a cache that they then
// find. What it throws on rank 0 ends it on all: there as it is, on the others as Error(peer).
// Called by all ranks; blocks.
template <typename Body>
void rank_zero_first(const comm::Group& group, const Body& body) {
  std::exception_ptr problem;
  std::string message;
  if (group.rank() == 0) {
    try {
      body();
    } catch (const std::exception& caught) {
      problem = std::current_exception();
      message = std::string("!") + caught.what();
    }
  }
  message = group.broadcast_text(message, 0, "rank 0 first");
  if (!message.empty()) {
    // Before all know, the end of rank 0 would be what they hear of.
    try {
      group.barrier({.label = "rank 0 first"});
    } catch (const Error&) {
    }
    if (problem) std::rethrow_exception(problem);
    throw Error("train", ErrorKind::peer,
                {.what = "rank 0, which goes first, failed", .got = message.substr(1)});
  }
  if (group.rank() != 0) body();
}

}  // namespace troika::train
