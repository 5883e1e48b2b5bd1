#pragma once
#include "cudal2/torch.h"
