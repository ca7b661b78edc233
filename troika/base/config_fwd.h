// Declares the types of config.h for headers that only name them.
#pragma once

namespace troika::config {

class Table;
struct Setting;

}  // namespace troika::config
