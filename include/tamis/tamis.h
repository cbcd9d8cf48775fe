/* tamis/tamis.h - all of the public API. */
#ifndef TAMIS_TAMIS_H
#define TAMIS_TAMIS_H

#include "tamis/base.h"
#include "tamis/bench.h"
#include "tamis/connector.h"
#include "tamis/dsa.h"
#include "tamis/engine.h"
#include "tamis/rows.h"
#include "tamis/sampler.h"
#include "tamis/sfa.h"
#include "tamis/speculation.h"
#include "tamis/tokenizer.h"

#endif
