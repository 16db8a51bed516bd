/* The word problems; the notation is in stories.h. */
#include "tasks/stories.h"

const story stories[] = {
    /* ---- One step ---- */
    {"{N} has {a} {T} and buys {b} more. How many {T} does {N} have now?", "a=2..900 b=2..900", "r=a+b",
     "{N} gets more, so add", "{N} has {r} {T}."},
    {"{N} has {a} {T}. {M} has {b} {T}. How many {T} do they have together?", "a=2..900 b=2..900", "r=a+b",
     "Together means add", "Together they have {r} {T}."},
    {"There are {a} {T} in one box and {b} in another. How many {T} are there in all?", "a=2..900 b=2..900", "r=a+b",
     "In all means add", "There are {r} {T} in all."},
    {"A shop sells {a} {T} on Monday and {b} on Tuesday. How many {T} in total?", "a=5..900 b=5..900", "r=a+b",
     "In total means add", "The shop sells {r} {T} in total."},
    {"{N} walks {a} steps and then {b} steps. How many steps is that?", "a=20..4000 b=20..4000", "r=a+b",
     "Both parts count, so add", "That is {r} steps."},
    {"A train has {a} people. Then {b} people get on. How many people are on the train?", "a=10..600 b=2..200", "r=a+b",
     "People get on, so add", "There are {r} people on the train."},
    {"{N} is {a} years old. How old will {N} be in {b} years?", "a=3..70 b=2..30", "r=a+b", "Later is older, so add",
     "{N} will be {r} years old."},
    {"{N} saved {a} dollars and earns {b} dollars. How much money does {N} have?", "a=5..900 b=5..900", "r=a+b",
     "Earning adds", "{N} has {r} dollars."},
    {"{N} has {a} {T} and gives {b} to {M}. How many {T} are left?", "a=5..900 b=2..899", "r=a-b",
     "{N} gives some away, so subtract", "{N} has {r} {T} left."},
    {"There are {a} {T} on the table. {N} takes {b}. How many are left?", "a=5..900 b=2..899", "r=a-b",
     "Some are taken, so subtract", "There are {r} {T} left."},
    {"{N} has {a} {T}. {M} has {b} {T}. How many more does {N} have?", "a=5..900 b=2..899", "r=a-b",
     "How many more means subtract", "{N} has {r} more {T}."},
    {"A book has {a} pages. {N} has read {b}. How many pages are left?", "a=20..900 b=5..899", "r=a-b",
     "The rest is the difference", "There are {r} pages left."},
    {"{N} had {a} {T} and lost {b} of them. How many are left?", "a=5..900 b=2..899", "r=a-b",
     "Some are lost, so subtract", "{N} has {r} {T} left."},
    {"A ticket to {P} costs {b} dollars. {N} pays with {a} dollars. How much change does {N} get?",
     "a=10..200 b=3..199", "r=a-b", "Change is the difference", "{N} gets {r} dollars."},
    {"{N} is {a} years old and {M} is {b}. How many years older is {N}?", "a=5..90 b=2..89", "r=a-b",
     "Older by the difference", "{N} is older by {r} years."},
    {"{N} wants to run {a} km and has run {b} km. How many km are left?", "a=5..90 b=2..89", "r=a-b",
     "The rest is the difference", "There are {r} km left."},
    {"There are {a} boxes with {b} {T} each. How many {T} are there?", "a=2..30 b=2..12", "r=a*b",
     "The same number in each, so multiply", "There are {r} {T}."},
    {"{N} buys {a} {T} for {b} dollars each. How much does {N} pay?", "a=2..40 b=2..12", "r=a*b",
     "Each costs the same, so multiply", "{N} pays {r} dollars."},
    {"{N} reads {b} pages a day for {a} days. How many pages is that?", "a=2..30 b=2..30", "r=a*b",
     "The same every day, so multiply", "That is {r} pages."},
    {"A car drives {a} km an hour. How far does it get in {b} hours?", "a=20..120 b=2..9", "r=a*b",
     "The same every hour, so multiply", "It gets {r} km far."},
    {"There are {a} rows of {b} chairs. How many chairs are there?", "a=2..25 b=2..25", "r=a*b",
     "Rows of the same length, so multiply", "There are {r} chairs."},
    {"One bag holds {a} {T}. How many {T} do {b} bags hold?", "a=2..60 b=2..9", "r=a*b", "Each bag holds the same",
     "They hold {r} {T}."},
    {"{N} shares {a} {T} equally among {b} friends. How many does each friend get?", "q=2..20 b=2..9 a=q*b", "r=a/b",
     "Equal parts, so divide", "Each friend gets {r} {T}."},
    {"{a} {T} are packed into boxes of {b}. How many boxes are filled?", "q=2..40 b=2..9 a=q*b", "r=a/b",
     "How many times it fits, so divide", "That fills {r} boxes."},
    {"{b} tickets cost {a} dollars. How much is one ticket?", "q=2..30 b=2..9 a=q*b", "r=a/b",
     "One of equal parts, so divide", "One ticket costs {r} dollars."},
    {"{N} packs {a} {T} into bags of {b}. How many {T} are left over?", "a=10..150 b=2..9", "r=a%b",
     "The rest of the division", "{N} has a rest of {r} {T}."},
    {"{a} {T} are shared equally among {b} children. How many {T} remain?", "a=10..150 b=2..9", "r=a%b",
     "The rest of the division", "The rest is {r}."},

    /* ---- Two steps ---- */
    {"{N} has {a} {T}. {M} gives {N} {b} more, and then {N} loses {c}. How many {T} does {N} have now?",
     "a=5..99 b=2..60 c=2..90", "p=a+b r=p-c", "With the gift|After the loss", "{N} has {r} {T} now."},
    {"{N} has {a} {T} and buys {b} bags with {c} {T} each. How many {T} does {N} have now?", "a=2..90 b=2..9 c=2..12",
     "p=b*c r=a+p", "In the bags|Together", "{N} has {r} {T} now."},
    {"{N} buys {a} {T} for {b} dollars each and pays with {c} dollars. How much change does {N} get?",
     "a=2..12 b=2..9 c=10..200", "p=a*b r=c-p", "The price|The change", "{N} gets {r} dollars."},
    {"{N} has {a} {T}. {M} has {b} more than {N}. How many {T} do they have together?", "a=2..90 b=2..60",
     "p=a+b r=a+p", "{M} has|Together", "Together they have {r} {T}."},
    {"{N} has {a} {T}. {M} has {b} fewer than {N}. How many {T} do they have together?", "a=5..90 b=2..60",
     "p=a-b r=a+p", "{M} has|Together", "Together they have {r} {T}."},
    {"{N} has {a} {T}. {M} has {b} times as many. How many {T} do they have together?", "a=2..40 b=2..9", "p=a*b r=a+p",
     "{M} has|Together", "Together they have {r} {T}."},
    {"{N} has {a} {T}. {M} has {b} times as many. How many more {T} does {M} have?", "a=2..40 b=2..9", "p=a*b r=p-a",
     "{M} has|The difference", "{M} has more by {r}."},
    {"A bus has {a} people. At a stop {b} get off and {c} get on. How many people are on the bus?",
     "a=10..80 b=2..40 c=2..40", "p=a-b r=p+c", "After some got off|After some got on",
     "The number of people on the bus is {r}."},
    {"{N} is {a} years old. {M} is {b} years older. How old will {M} be in {c} years?", "a=3..60 b=2..30 c=2..20",
     "p=a+b r=p+c", "{M} is now|In {c} years", "{M} will be {r} years old."},
    {"{N} is {a} years old. {M} is {b} times as old. How old was {M} {c} years ago?", "a=3..20 b=2..4 c=1..9",
     "p=a*b r=p-c", "{M} is now|{c} years ago", "{M} was {r} years old."},
    {"{N} earns {a} dollars an hour and works {b} hours. Then {N} spends {c} dollars. How much is left?",
     "a=5..30 b=2..9 c=5..150", "p=a*b r=p-c", "Earned|Left", "What is left is {r} dollars."},
    {"A car drives {a} km an hour for {b} hours and then {c} km more. How far does it drive?",
     "a=20..110 b=2..7 c=5..90", "p=a*b r=p+c", "In {b} hours|In all", "It drives {r} km."},
    {"The way to {P} is {a} km. A train goes {b} km an hour. After {c} hours, how many km are left?",
     "a=150..900 b=30..120 c=2..6", "p=b*c r=a-p", "It went|Left", "The rest is {r} km."},
    {"A box has {a} {T}. {N} takes {b} out and shares the rest equally among {c} friends. How many does each get?",
     "q=2..15 c=2..9 k=q*c b=2..20 a=k+b", "p=a-b r=p/c", "The rest|Each", "Each friend gets {r} {T}."},
    {"{N} has {a} {T} and {M} has {b}. They share them equally among {c} children. How many does each child get?",
     "q=2..15 c=2..9 k=q*c b=2..30 a=k-b", "p=a+b r=p/c", "Together|Each", "Each child gets {r} {T}."},
    {"{N} bakes {a} trays of {b} cookies and packs them into bags of {c}. How many bags are filled?",
     "a=2..9 b=2..12 c=2..9", "p=a*b r=p/c", "Cookies|Bags", "That fills {r} bags."},
    {"{N} and {M} pick {a} and {b} {T}. They pack all of them into bags of {c}. How many {T} are left over?",
     "a=5..60 b=5..60 c=3..9", "p=a+b r=p%c", "Together|The rest of the division", "The rest is {r}."},
    {"{a} {T} cost {b} dollars. How much do {c} {T} cost?", "a=2..9 q=2..12 b=a*q c=2..12", "p=b/a r=p*c",
     "One costs|{c} cost", "They cost {r} dollars."},
    {"A machine makes {b} {T} in {a} minutes. How many does it make in {c} minutes?", "a=2..9 q=2..12 b=a*q c=2..15",
     "p=b/a r=p*c", "In one minute|In {c} minutes", "It makes {r}."},
    {"A tap fills {a} litres a minute, a second one {b} litres a minute. How many litres do both fill in {c} minutes?",
     "a=2..30 b=2..30 c=2..9", "p=a+b r=p*c", "In a minute|In {c} minutes", "They fill {r} litres."},
    {"A garden has {a} rows of {b} trees. {c} trees are cut. How many trees are left?", "a=2..15 b=2..12 c=2..90",
     "p=a*b r=p-c", "At first|Left", "The number of trees left is {r}."},
    {"A shop has {a} {T}. It sells {b} in the morning and {c} in the afternoon. How many {T} are left?",
     "a=20..300 b=2..140 c=2..140", "p=b+c r=a-p", "Sold|Left", "The shop has {r} {T} left."},
    {"{N} reads {a} pages a day. The book has {b} pages. How many pages are left after {c} days?",
     "a=3..30 b=60..400 c=2..9", "p=a*c r=b-p", "Read|Left", "The pages left are {r}."},
    {"A ticket for a child costs {a} dollars, one for an adult {b} dollars more. How much are {c} tickets for adults?",
     "a=2..20 b=2..20 c=2..9", "p=a+b r=p*c", "One for an adult|{c} of them", "They cost {r} dollars."},
    {"Half of the {a} {T} in a basket are sold, and then {b} more. How many are left?", "q=6..90 a=q*2 b=2..60",
     "p=a/2 r=p-b", "After half of them|After {b} more", "The basket has {r} {T} left."},
    {"{N} had {a} dollars, got {b} dollars from {M} and bought {T} for {c} dollars. How many dollars does {N} have?",
     "a=5..150 b=5..90 c=5..200", "p=a+b r=p-c", "With the gift|After buying", "{N} has {r} dollars."},
    {"{N} walks {a} metres to school, and back again. How many metres is that in {b} days?", "a=50..450 b=2..6",
     "p=a*2 r=p*b", "There and back|In {b} days", "That is {r} metres."},
    {"A film starts {a} minutes after the doors open and takes {b} minutes. {N} is {c} minutes late for the doors. How "
     "many minutes after {N} comes does the film end?",
     "a=10..40 b=60..150 c=2..30", "p=a+b r=p-c", "From the doors to the end|Without the minutes missed",
     "The film ends after {r} minutes."},

    /* ---- Three steps ---- */
    {"{N} buys {a} {T} for {b} dollars each and {c} {U} for {e} dollars each. How much does {N} pay?",
     "a=2..12 b=2..9 c=2..12 e=2..9", "p=a*b q=c*e r=p+q", "The {T}|The {U}|Together", "{N} pays {r} dollars."},
    {"{N} has {a} {T}. {M} has {b} more than {N}, and {K} has {c} fewer than {M}. How many {T} do they have in all?",
     "a=5..60 b=2..40 c=2..50", "p=a+b q=p-c s=a+p r=s+q", "{M} has|{K} has|{N} and {M}|In all",
     "In all they have {r} {T}."},
    {"{N} has {a} boxes with {b} {T} each. {N} gives {c} {T} to {M} and shares the rest equally among {e} friends. How "
     "many {T} does each friend get?",
     "a=2..9 b=3..12 c=2..30 e=2..6", "p=a*b q=p-c r=q/e", "In the boxes|The rest|Each", "Each friend gets {r} {T}."},
    {"{N} saves {a} dollars a week for {b} weeks. {M} gives {c} dollars. A bike costs {e} dollars. How many dollars "
     "are "
     "missing?",
     "a=5..30 b=2..9 c=5..50 e=100..400", "p=a*b q=p+c r=e-q", "Saved|With the gift|Missing",
     "The missing amount is {r} dollars."},
    {"A train with {a} people stops in {P}: {b} get off and {c} get on. At the next stop {e} get off. How many people "
     "are "
     "on the train?",
     "a=30..300 b=5..90 c=5..90 e=5..90", "p=a-b q=p+c r=q-e", "After {b} got off|After {c} got on|After {e} got off",
     "The train has {r} people."},
    {"A car drives {a} km an hour for {b} hours and {c} km an hour for {e} hours. How many km is that?",
     "a=20..90 b=2..5 c=20..90 e=2..5", "p=a*b q=c*e r=p+q", "The first part|The second part|Together",
     "That is {r} km."},
    {"{N} has {a} {T}, {M} has {b} times as many, and {K} has {c} more than {M}. How many {T} does {K} have more than "
     "{N}?",
     "a=3..30 b=2..5 c=2..30", "p=a*b q=p+c r=q-a", "{M} has|{K} has|The difference", "{K} has more by {r}."},
    {"{N} earns {a} dollars an hour. {N} works {b} hours on Monday and {c} hours on Tuesday and spends {e} dollars. "
     "How "
     "many dollars are left?",
     "a=5..20 b=2..8 c=2..8 e=5..100", "p=b+c q=a*p r=q-e", "Hours|Earned|Left", "What is left is {r} dollars."},
    {"{a} {T} cost {b} dollars. {N} buys {c} {T} and pays with {e} dollars. How much change does {N} get?",
     "a=2..9 q=2..9 b=a*q c=2..12 e=20..150", "p=b/a s=p*c r=e-s", "One costs|{c} cost|The change",
     "{N} gets {r} dollars."},
    {"{N} is {a} years old, {M} is {b} years older, and {K} is {c} times as old as {M}. How old will {K} be in {e} "
     "years?",
     "a=2..15 b=2..10 c=2..4 e=2..15", "p=a+b q=p*c r=q+e", "{M} is|{K} is|In {e} years", "{K} will be {r} years old."},
    {"A farm has {a} hens that lay {b} eggs each a week. {c} eggs break, the rest is packed into boxes of {e}. How "
     "many "
     "eggs are left over?",
     "a=5..20 b=3..6 c=2..15 e=4..9", "p=a*b q=p-c r=q%e", "Eggs|The rest|Left over", "The eggs left over are {r}."},
    {"{N} and {M} share {a} {T} equally. {N} gives {b} to {K} and then finds {c}. How many {T} does {N} have?",
     "q=5..60 a=q*2 b=2..30 c=2..20", "p=a/2 s=p-b r=s+c", "Each gets|After giving|After finding", "{N} has {r} {T}."},
    {"There are {a} rows of {b} chairs and {c} rows of {e} chairs. {f} chairs are taken. How many chairs are free?",
     "a=2..9 b=3..12 c=2..9 e=3..12 f=5..100", "p=a*b q=c*e s=p+q r=s-f", "The first rows|The others|In all|Free",
     "The free chairs are {r}."},
    {"A tank holds {a} litres. It has {b} litres, and {c} litres a minute run in. How many litres are missing after "
     "{e} "
     "minutes?",
     "a=100..500 b=5..90 c=3..20 e=2..9", "p=c*e q=b+p r=a-q", "Ran in|Now in it|Missing", "It lacks {r} litres."},
    {"{N} bakes {a} trays of {b} cookies, eats {c}, and fills bags of {e}. How many full bags are there?",
     "a=2..9 b=4..12 c=2..9 e=3..9", "p=a*b q=p-c r=q:e", "Baked|Left|Full bags", "The number of full bags is {r}."},
    {"Each of {a} classes has {b} children. They go by bus, {c} children in a bus, and {e} buses are full. How many "
     "children still wait?",
     "a=3..9 b=15..30 c=20..50 e=1..4", "p=a*b q=c*e r=p-q", "Children|In the buses|Waiting",
     "The number waiting is {r}."},
    {"The way from {N} to {M} is {a} km and from {M} to {K} {b} km. {N} rides to {K} by way of {M} and back, and has "
     "done "
     "{c} km. How many km are left?",
     "a=3..50 b=3..50 c=2..80", "p=a+b q=p*2 r=q-c", "One way|Both ways|Left", "The rest is {r} km."},
    {"{N} reads {a} pages on Monday, {b} pages more on Tuesday, and on Wednesday as many as on both days. How many "
     "pages "
     "is that in all?",
     "a=5..40 b=2..20", "p=a+b q=a+p r=q*2", "Tuesday|Both days|With Wednesday", "In all that is {r} pages."},

    /* ---- Four steps ---- */
    {"{N} buys {a} {T} for {b} dollars each and {c} {U} for {e} dollars each and pays with {f} dollars. How much "
     "change "
     "does {N} get?",
     "a=2..9 b=2..9 c=2..9 e=2..9 f=50..200", "p=a*b q=c*e s=p+q r=f-s", "The {T}|The {U}|Together|The change",
     "{N} gets {r} dollars."},
    {"{N} has {a} bags with {b} {T} each and {M} has {c} bags with {e} {T} each. They share all of them equally among "
     "{f} "
     "friends. How many {T} does each friend get?",
     "a=2..9 b=2..9 c=2..9 e=2..9 f=2..6", "p=a*b q=c*e s=p+q r=s/f", "{N} has|{M} has|Together|Each",
     "Each friend gets {r} {T}."},
    {"{N} has {a} dollars and saves {b} dollars a week for {c} weeks. Then {N} buys {e} {T} for {f} dollars each. How "
     "many "
     "dollars are left?",
     "a=5..60 b=3..20 c=2..9 e=2..6 f=2..12", "p=b*c q=a+p s=e*f r=q-s", "Saved|In all|The {T}|Left",
     "What is left is {r} dollars."},
    {"A shop has {a} boxes with {b} {T} each. It sells {c} {T} a day for {e} days and then gets {f} new ones. How many "
     "{T} "
     "does it have?",
     "a=4..12 b=5..12 c=3..15 e=2..6 f=5..60", "p=a*b q=c*e s=p-q r=s+f", "At first|Sold|Left|With the new ones",
     "The shop has {r} {T}."},
    {"{N} is {a} years old. {M} is {b} years older, {K} is {c} times as old as {N}. How old will the three be together "
     "in "
     "one year?",
     "a=3..20 b=2..10 c=2..4", "p=a+b q=a*c s=p+q t=s+a r=t+3", "{M} is|{K} is|{M} and {K}|All three|In one year",
     "Together they will be {r} years old."},
    {"{N} works {a} hours a day for {b} days at {c} dollars an hour. Of that {N} spends {e} dollars and shares the "
     "rest "
     "equally with {M}. How many dollars does {M} get?",
     "a=2..8 b=2..6 c=5..12 e=5..80", "p=a*b q=p*c s=q-e r=s/2", "Hours|Earned|The rest|Half of it",
     "{M} gets {r} dollars."},
    {"A bus with {a} people stops three times. {b} people get on each time, and {c} get off each time. How many people "
     "are "
     "on the bus? Each pays {e} dollars: how many dollars do they pay?",
     "a=5..40 b=4..12 c=2..9 e=2..5", "p=b-c q=p*3 s=a+q r=s*e", "More at each stop|In three stops|People|They pay",
     "They pay {r} dollars."},
    {"{N} cycles {a} km an hour for {b} hours, rests, and cycles {c} km an hour for {e} hours. The way to {P} is {f} "
     "km. "
     "How many km are left?",
     "a=8..20 b=2..4 c=8..20 e=2..4 f=100..300", "p=a*b q=c*e s=p+q r=f-s",
     "The first part|The second part|Together|Left", "The rest is {r} km."},
    {"{a} {T} are packed into boxes of {b}. Each full box is sold for {c} dollars, the {T} that are left over for {e} "
     "dollars each. How many dollars is that?",
     "a=20..100 b=4..9 c=5..12 e=2..3", "p=a:b q=a%b s=p*c t=q*e r=s+t",
     "Full boxes|Left over|For the boxes|For the rest|Together", "That is {r} dollars."},
    {"{N} has {a} {T}. {M} has twice as many, {K} has {b} fewer than {M}. They put all together and make groups of "
     "{c}. "
     "How many {T} are left over?",
     "a=5..30 b=2..20 c=3..9", "p=a*2 q=p-b s=a+p t=s+q r=t%c", "{M} has|{K} has|{N} and {M}|All|The rest",
     "The rest is {r}."},
    {"A garden has {a} beds with {b} plants each. {c} plants die in each bed, and {N} plants {e} new ones in all. Then "
     "{M} "
     "picks one flower of every plant and ties bunches of {f}. How many full bunches are there?",
     "a=3..9 b=5..12 c=1..4 e=2..30 f=3..9", "p=b-c q=a*p s=q+e r=s:f",
     "In each bed|In all beds|With the new ones|Bunches", "The number of full bunches is {r}."},
    {"{N} collects {a} {T} a day for {b} days, {M} {c} a day for {e} days. How many more has the one than the other, "
     "if "
     "{N} has more?",
     "a=6..20 b=4..9 c=2..9 e=2..6", "p=a*b q=c*e r=p-q", "{N} has|{M} has|The difference", "{N} has more by {r}."},
};

const size_t story_count = sizeof stories / sizeof *stories;
