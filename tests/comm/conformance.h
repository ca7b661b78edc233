// The tests that every back end must pass, on any number of ranks. Each rank of a group calls them.
#pragma once

#include "troika/comm/group.h"

namespace troika::comm {

void conform(Group group);

// The part of it that moves data and makes groups, and reduces little; called by conform().
void conform_in_moving(Group& group);
// The part of it about messages between two ranks; called by conform_in_moving().
void conform_in_messages(Group& group);
// The part of it about groups that only their members make; called by conform_in_moving().
void conform_in_groups(const Group& group);

}  // namespace troika::comm
