// The tests that every back end must pass, on any number of ranks. Every rank of a group calls
// them.
#pragma once

#include "troika/comm/group.h"

namespace troika::comm {

void conform(Group group);

// The tests that move data and make groups, with few reductions. Called by conform().
void conform_in_moving(Group& group);
// The tests of messages between two ranks. Called by conform_in_moving().
void conform_in_messages(Group& group);
// The tests of groups that are made by their members only. Called by conform_in_moving().
void conform_in_groups(const Group& group);

}  // namespace troika::comm
