#include "troika/base/temporary_folder.h"

#include <stdlib.h>

#include <cerrno>
#include <cstring>

#include "troika/base/error.h"

namespace troika {

TemporaryFolder::TemporaryFolder() {
  std::string name = (std::filesystem::temp_directory_path() / "troika-XXXXXX").string();
  if (!::mkdtemp(name.data())) {
    throw Error("base", ErrorKind::failure,
                {.what = "cannot make the folder " + name, .got = std::strerror(errno)});
  }
  path_ = name;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace troika
