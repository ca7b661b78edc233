// What every back end must do, on any number of ranks: called by each rank of a group.
#pragma once

#include "troika/comm/group.h"

namespace troika::comm {

void conform(Group group);

}  // namespace troika::comm
